from support.properties import use_project_profile

use_project_profile()
