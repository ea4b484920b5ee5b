// Before the first paint: the theme this browser chose, if it chose one.
try {
  const theme = localStorage.getItem("tinkex-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* storage may be off */ }
