// Calls to the server. A visit is a cookie scripts cannot read, and a secret kept by this origin.
const SECRET = "tinkex-page";
const HEADER = "x-tinkex-page";
const VISIT = "/api/v1/dashboard/visit";
export const DASHBOARD = "/api/dashboard";

export class ApiError extends Error {
  constructor(status, detail, retryAfter) {
    super(detail);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

let secret = localStorage.getItem(SECRET) ?? "";
let signedOut = () => {};

export const whenSignedOut = (listener) => { signedOut = listener; };

export async function call(path, options = {}) {
  const headers = { [HEADER]: secret || "new", ...options.headers };
  if (options.json !== undefined) {
    headers["content-type"] = "application/json";
    options = { ...options, method: options.method ?? "POST", body: JSON.stringify(options.json) };
  }
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
  if (!response.ok) {
    const said = await response.json().catch(() => ({}));
    const detail = said.detail ?? said.error?.message ?? `The server answered ${response.status}.`;
    if (response.status === 401 && path !== VISIT) signedOut();
    throw new ApiError(response.status, detail, Number(response.headers.get("retry-after")) || 0);
  }
  return response;
}

export const get = async (path, options) => (await call(path, options)).json();

export const query = (values) => {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

// A run's id has colons, which belong in a path as they are.
export const runPath = (run) => `${DASHBOARD}/runs/${encodeURIComponent(run)}`;

export async function signIn(credentials) {
  const visitor = await (await call(VISIT, { json: credentials })).json();
  secret = visitor.page_secret;
  localStorage.setItem(SECRET, secret);
  return visitor;
}

export async function signOut() {
  await call(VISIT, { method: "DELETE" });
  secret = "";
  localStorage.removeItem(SECRET);
}

export const visitor = () => get(VISIT);
