// Calls to the API. An ApiProblem is an answer of the server; anything else that is thrown is the network.

export class ApiProblem extends Error {
  constructor(status, body) {
    super(body.detail || "something went wrong");
    this.status = status;
    this.code = body.code || "error";
  }
}

// Where the pages of this run begin: "/", or "/runs/NAME/" where one server has several runs.
export const BASE = new URL("../", import.meta.url).pathname;

let csrf = null, who = null;

async function request(method, path, body, options = {}) {
  const headers = { "Content-Type": "application/json" };
  if (csrf) headers["X-CSRF-Token"] = csrf;
  const response = await fetch(`${BASE}api/v1${path}`, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    ...options,
  });
  const content = await response.json();
  if (!response.ok) throw new ApiProblem(response.status, content);
  return content;
}

// Signing in again from another tab replaces this browser's session. The same person continues with the new one; for
// another person's session this page is signed out (401), and nothing is sent in that person's name.
export async function call(method, path, body) {
  try {
    return await request(method, path, body);
  } catch (problem) {
    if (problem.status !== 403 || !who || !(await sessionReplaced())) throw problem;
    return request(method, path, body);
  }
}

async function sessionReplaced() {
  const now = await request("GET", "/me");
  if (now.id !== who) throw new ApiProblem(401, { code: "other_person", detail: `${now.handle} has signed in in this browser.` });
  const replaced = now.csrf !== csrf;
  csrf = now.csrf;
  return replaced;
}

// Sent even while the page goes away; nobody waits for the reply.
export function callAtTheEnd(method, path, body) {
  request(method, path, body, { keepalive: true }).catch(() => {});
}

function remember(me) {
  [csrf, who] = [me.csrf, me.id];
  return me;
}

export const whoAmI = async () => remember(await request("GET", "/me"));
export const signIn = async (token) => remember(await request("POST", "/session", { token }));

export const acceptInvitation = async (code) => remember(await request("POST", "/invitation", { code }));

export async function signOut() {
  await call("DELETE", "/session");
  [csrf, who] = [null, null];
}

export const $ = (id) => document.getElementById(id);

// An element with text and children; text is never parsed as HTML.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A line of a table; each cell is text or an element.
export const row = (...cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));

// The line of one thing, by whose key it is known when the table is read again.
export function named(key, line) {
  line.dataset.name = key;
  return line;
}
