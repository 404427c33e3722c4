"use strict";
// Renders /openapi.json (OpenAPI v2). Everything from the document goes into the page as text, never as markup.

const VERBS = ["get", "post", "put", "patch", "delete"];

function element(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) e.setAttribute(key, value);
  for (const child of children) if (child !== null && child !== undefined && child !== "") e.append(child);
  return e;
}

function slug(text) {
  return text.replace(/[^A-Za-z0-9]+/g, "-").replace(/^-|-$/g, "");
}

function shortName(ref) {
  return ref.replace("#/definitions/", "");
}

// typeOf gives a schema's type as nodes, with links to messages.
function typeOf(schema) {
  if (!schema) return [""];
  if (schema.$ref) {
    const name = shortName(schema.$ref);
    return [element("a", { href: "#message-" + slug(name) }, name)];
  }
  if (schema.type === "array") return ["list of ", ...typeOf(schema.items)];
  if (schema.additionalProperties) return ["map of ", ...typeOf(schema.additionalProperties)];
  if (schema.title && schema.properties && schema.properties.result) return ["stream, one a line: ", ...typeOf(schema.properties.result)];
  let text = schema.type || "any";
  if (schema.format) text += " (" + schema.format + ")";
  if (schema.enum) text += ": " + schema.enum.join(", ");
  return [text];
}

function description(item) {
  return [item.summary || item.title, item.description].filter(Boolean).join("\n");
}

function row(...cells) {
  return element("tr", {}, ...cells.map((cell) => element("td", {}, ...(Array.isArray(cell) ? cell : [cell]))));
}

function table(headings, rows) {
  return element("table", {}, element("thead", {}, element("tr", {}, ...headings.map((h) => element("th", { scope: "col" }, h)))), element("tbody", {}, ...rows));
}

function operation(verb, path, op) {
  const id = "operation-" + slug(op.operationId || verb + path);
  const title = element("h3", {}, element("span", { class: "verb " + verb }, verb.toUpperCase()), " " + path);
  const section = element("section", { id, "data-find": (verb + " " + path + " " + description(op)).toLowerCase() }, title, element("p", {}, description(op)));
  const parameters = op.parameters || [];
  if (parameters.length > 0) {
    section.append(table(["Parameter", "In", "Type", "Meaning"], parameters.map((p) =>
      row(p.name + (p.required ? " *" : ""), p.in, typeOf(p.schema || p), description(p)))));
  }
  const answers = Object.entries(op.responses || {});
  section.append(table(["Answer", "Type", "Meaning"], answers.map(([code, r]) => row(code, typeOf(r.schema), r.description || ""))));
  return section;
}

function message(name, schema) {
  const section = element("section", { id: "message-" + slug(name) }, element("h3", {}, name), element("p", {}, description(schema)));
  const properties = Object.entries(schema.properties || {});
  if (properties.length > 0) section.append(table(["Field", "Type", "Meaning"], properties.map(([field, s]) => row(field, typeOf(s), description(s)))));
  else section.append(element("p", { class: "dim" }, ...typeOf(schema)));
  return section;
}

function render(doc) {
  document.getElementById("title").textContent = (doc.info && doc.info.title) || "REST API";
  const groups = new Map();
  for (const [path, verbs] of Object.entries(doc.paths || {})) {
    for (const verb of VERBS) {
      const op = verbs[verb];
      if (!op) continue;
      const tag = (op.tags && op.tags[0]) || "Other";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push({ verb, path, op });
    }
  }
  const contents = document.getElementById("contents");
  const operations = document.getElementById("operations");
  for (const [tag, items] of groups) {
    const list = element("ul", {});
    operations.append(element("h2", {}, tag));
    for (const { verb, path, op } of items) {
      const section = operation(verb, path, op);
      operations.append(section);
      list.append(element("li", { "data-for": section.id }, element("a", { href: "#" + section.id }, element("span", { class: verb }, verb.toUpperCase()), " " + path)));
    }
    contents.append(element("h3", {}, tag), list);
  }
  const definitions = Object.entries(doc.definitions || {}).sort(([a], [b]) => (a < b ? -1 : 1));
  document.getElementById("messages-title").hidden = definitions.length === 0;
  document.getElementById("messages").append(...definitions.map(([name, schema]) => message(name, schema)));
  const state = document.getElementById("state");
  state.textContent = "Bodies and answers of the paths under /api/v1 are Kubernetes objects (JSON; bodies also YAML). Errors are Kubernetes Status objects.";
  state.setAttribute("data-ready", "true");
  document.getElementById("filter").addEventListener("input", (event) => filter(event.target.value.trim().toLowerCase()));
  if (location.hash) {
    const target = document.getElementById(location.hash.slice(1));
    if (target) target.scrollIntoView();
  }
}

function filter(words) {
  for (const section of document.querySelectorAll("#operations section")) {
    const hidden = !words.split(/\s+/).every((word) => section.dataset.find.includes(word));
    section.hidden = hidden;
    const entry = document.querySelector('[data-for="' + section.id + '"]');
    if (entry) entry.hidden = hidden;
  }
}

fetch("/openapi.json").then((answer) => {
  if (!answer.ok) throw new Error("/openapi.json answered " + answer.status);
  return answer.json();
}).then(render).catch((problem) => {
  document.getElementById("state").textContent = "The document can't be shown: " + problem.message;
});
