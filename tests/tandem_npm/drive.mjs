// Drives the client for Node and prints what it gets, one JSON line each, as the drivers of
// tests/bridge/clients do: `node drive.mjs BASE TOKEN WORKDIR NOT_SERVED`, the last as JSON.

import { TandemClient, TandemValidationError, filterByType, isRunTerminalEvent } from "@frumu/tandem-client";

const CALL_MS = 90000;

const [base, token, workdir, notServed] = process.argv.slice(2);
const client = new TandemClient({ baseUrl: base, token: "not yet", timeoutMs: CALL_MS });

function tell(label, method, outcome) {
  process.stdout.write(JSON.stringify({ label, method, ...outcome }) + "\n");
}

// The client says status and body in one text; a reply that its schemas refuse is no refusal of ours.
function refusal(error) {
  const match = /\((\d{3})[^)]*\): (.*)$/s.exec(error.message);
  if (error instanceof TandemValidationError || !match) throw error;
  return { status: Number(match[1]), body: JSON.parse(match[2]) };
}

function found(name) {
  const [first, second] = name.split(".");
  return second ? client[first][second].bind(client[first]) : client[first].bind(client);
}

async function call(label, method, ...args) {
  let result;
  try {
    result = await found(method)(...args);
  } catch (error) {
    tell(label, method, { refused: refusal(error) });
    return undefined;
  }
  tell(label, method, { result: result ?? null });
  return result;
}

function methodsOf(object) {
  return Object.getOwnPropertyNames(Object.getPrototypeOf(object)).filter(
    (name) => name !== "constructor" && !name.startsWith("_") && typeof object[name] === "function",
  );
}

function knownMethods() {
  const namespaces = Object.keys(client).filter((name) => typeof client[name] === "object");
  return [
    ...methodsOf(client),
    ...namespaces.flatMap((space) => methodsOf(client[space]).map((name) => `${space}.${name}`)),
  ];
}

// Reads on until an event of that type, or with that delta; the stream can be read on afterwards.
async function until(events, wanted) {
  const seen = [];
  for (;;) {
    const { done, value } = await events.next();
    if (done) throw new Error(`the stream ended without ${wanted}`);
    seen.push(value);
    if (value.type === wanted || value.properties.delta === wanted) return seen;
  }
}

// A stream that ends with its block: this client's reader lets go of a connection only if it is aborted.
async function streaming(open, use) {
  const closing = new AbortController();
  const timer = setTimeout(() => closing.abort(), CALL_MS);
  try {
    return await use(open({ signal: closing.signal }));
  } finally {
    clearTimeout(timer);
    closing.abort();
  }
}

const streamOf = (session, run) => (options) => client.stream(session, run, options);

async function sessions() {
  const first = await call("create", "sessions.create", {
    title: "First",
    sourceKind: "chat",
    sourceMetadata: { by: "npm" },
    permissions: [{ permission: "bash", pattern: "ls", action: "allow" }],
  });
  await call("create again", "sessions.create", { title: "Second", directory: workdir });
  await call("list", "sessions.list");
  await call("list some", "sessions.list", {
    q: "fir",
    page: 1,
    pageSize: 5,
    archived: false,
    scope: "workspace",
    workspace: workdir,
    source: "chat",
  });
  await call("get", "sessions.get", first);
  await call("update", "sessions.update", first, { title: "Renamed" });
  await call("prompt_sync", "sessions.promptSync", first, "Hello");
  await call("messages", "sessions.messages", first);
  await call("archive", "sessions.archive", first);
  await call("list archived", "sessions.list", { archived: true });
  await call("delete", "sessions.delete", first);
}

async function streams() {
  const session = await streaming(
    (options) => client.globalStream(options),
    async (events) => {
      await events.next();
      const made = await call("create", "sessions.create", { title: "Streams" });
      tell("global_stream", "globalStream", { result: await until(events, "session.created") });
      return made;
    },
  );
  const routing = { toolMode: "auto", contextMode: "auto" };
  const run = await call("prompt_async", "sessions.promptAsync", session, "Go", undefined, routing);
  await streaming(streamOf(session, run.runId), async (events) => {
    tell("stream", "stream", { result: await until(events, "session.run.finished") });
  });
  await streaming(streamOf(session, run.runId), async (events) => {
    for await (const event of filterByType(events, "session.run.finished")) {
      if (!isRunTerminalEvent(event)) throw new Error("the end of a run is not known as one");
      break;
    }
  });
  await call("run_events", "runEvents", run.runId);
  await call("run_events tail", "runEvents", run.runId, { tail: 1 });
  await call("run_events rest", "runEvents", run.runId, { sinceSeq: 0 });
  return session;
}

async function conflict(session) {
  const parts = [
    { type: "text", text: "Wait" },
    { type: "file", mime: "text/plain", url: "data:text/plain,note" },
  ];
  const run = await call("prompt_async_parts", "sessions.promptAsyncParts", session, parts);
  await streaming(streamOf(session, run.runId), async (events) => {
    tell("stream at work", "stream", { result: await until(events, "Hello, ") });
  });
  await call("active_run", "sessions.activeRun", session);
  await call("conflict", "sessions.promptAsync", session, "Me too");
  await call("cancel_run other", "sessions.cancelRun", session, "run-other");
  await streaming(streamOf(session, run.runId), async (events) => {
    const again = await until(events, "Hello, ");
    await call("cancel_run", "sessions.cancelRun", session, run.runId);
    again.push(...(await until(events, "session.run.finished")));
    tell("stream again", "stream", { result: again });
  });
  for (const method of ["cancel", "abort"]) {
    const next = await call("prompt_async", "sessions.promptAsync", session, method);
    await streaming(streamOf(session, next.runId), (events) => until(events, "Hello, "));
    await call(method, `sessions.${method}`, session);
  }
  const last = await call("prompt_async", "sessions.promptAsync", session, "delete");
  await streaming(streamOf(session, last.runId), async (events) => {
    await until(events, "Hello, ");
    await call("delete at work", "sessions.delete", session);
    tell("stream deferred", "stream", { result: await until(events, "session.run.finished") });
  });
  await call("cancel nothing", "sessions.cancel", session);
}

// Starts a run, and goes on once it asks.
async function asked(session, type, use) {
  const run = await client.sessions.promptAsync(session, "Ask");
  await streaming(streamOf(session, run.runId), async (events) => {
    await until(events, type);
    const label = await use();
    tell(label, "stream", { result: await until(events, "session.run.finished") });
  });
}

async function asking(session) {
  for (const reply of ["once", "always", "reject"]) {
    await asked(session, "permission.asked", async () => {
      const { requests } = await call(`permissions ${reply}`, "permissions.list");
      await call(`reply ${reply}`, "permissions.reply", requests[0].id, reply);
      return `after ${reply}`;
    });
  }
  await asked(session, "question.asked", async () => {
    const { questions } = await call("questions", "questions.list");
    await call("answer", "questions.reply", questions[0].id, "blue");
    return "after answer";
  });
  await asked(session, "question.asked", async () => {
    const { questions } = await call("questions", "questions.list");
    await call("reject", "questions.reject", questions[0].id);
    return "after rejection";
  });
}

async function tree(session) {
  await call("todo run", "sessions.promptSync", session, "Plan");
  await call("todos", "sessions.todos", session);
  await call("fork", "sessions.fork", session);
  await call("children", "sessions.children", session);
  await call("summarize", "sessions.summarize", session);
  await call("attach", "sessions.attach", session, `${workdir}/inner`);
}

async function refusals(session) {
  await call("missing session", "sessions.get", "nobody");
  await call("missing request", "permissions.reply", "nobody", "once");
  await call("wrong word", "permissions.reply", "nobody", "perhaps");
  await call("outside", "sessions.attach", session, "/");
}

// What has no route here, called with arguments that are made up.
async function callNotServed(names) {
  for (const name of names) {
    const method = found(name);
    try {
      const started = method(...Array(method.length || 1).fill(anything()));
      const result = await (typeof started.next === "function" ? started.next() : started);
      tell("not served", name, { result: result ?? null });
    } catch (error) {
      const isSent = /\(\d{3}/.test(error.message);
      tell("not served", name, isSent ? { refused: refusal(error) } : { unsent: error.message });
    }
  }
}

// An argument that passes for a text, for a list and for an object without keys.
function anything() {
  const made = { toString: () => "x", [Symbol.toPrimitive]: () => "x", map: () => [] };
  return new Proxy({}, { get: (_, key) => made[key] });
}

await call("wrong token", "sessions.list");
client.setToken(token);
tell("token", "setToken", { result: null });
for (const name of knownMethods()) tell("known", name, {});
await call("health", "health");
await call("catalog", "providers.catalog");
await sessions();
const session = await streams();
await conflict(session);
await asking(session);
await tree(session);
await refusals(session);
await callNotServed(JSON.parse(notServed));
