// Calls to the API. An ApiProblem is an answer of the server; anything else that is thrown is the network.

export class ApiProblem extends Error {
  constructor(status, body) {
    super(body.detail || "something went wrong");
    this.status = status;
    this.code = body.code || "error";
  }
}

let csrf = null;

export async function call(method, path, body) {
  const headers = { "Content-Type": "application/json" };
  if (csrf) headers["X-CSRF-Token"] = csrf;
  const response = await fetch("/api/v1" + path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const content = await response.json();
  if (!response.ok) throw new ApiProblem(response.status, content);
  return content;
}

export async function whoAmI() {
  const me = await call("GET", "/me");
  csrf = me.csrf;
  return me;
}

export async function signIn(token) {
  const me = await call("POST", "/session", { token });
  csrf = me.csrf;
  return me;
}

export async function signOut() {
  await call("DELETE", "/session");
  csrf = null;
}

export const $ = (id) => document.getElementById(id);

// An element with text and children; text is never parsed as HTML.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
