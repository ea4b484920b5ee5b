// preact with htm: templates without a build step. Text in them is always text, never markup.
import { h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { render };
export const html = htm.bind(h);
