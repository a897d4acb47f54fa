"use strict";
const form = document.getElementById("form");
const button = document.getElementById("send");
const fields = ["text", "text_pair"].map((id) => document.getElementById(id)).filter(Boolean);
const problem = document.getElementById("problem");
const results = document.getElementById("results");

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function bar(name, probability, chosen) {
  const row = element("div", chosen ? "bar chosen" : "bar");
  const track = element("div", "track");
  const fill = element("div", "fill");
  fill.style.width = `${100 * probability}%`;
  track.append(fill);
  row.append(element("span", "", name), track, element("span", "", probability.toFixed(4)));
  return row;
}

// The text with its entities, or words, marked with their types, or tags, in colors and words.
function marked(text, parts) {
  const quote = element("blockquote", "marked");
  const kinds = [...new Set(parts.map((part) => part.type ?? part.tag))].sort();
  // The service counts characters, and JavaScript half of some of them.
  const characters = [...text];
  let end = 0;
  for (const part of parts) {
    const kind = part.type ?? part.tag;
    const mark = element("mark", "", part.text);
    mark.style.setProperty("--hue", (kinds.indexOf(kind) * 67 + 210) % 360);
    mark.title = part.probability.toFixed(4);
    mark.append(element("small", "", ` ${kind}`));
    quote.append(characters.slice(end, part.start).join(""), mark);
    end = part.end;
  }
  quote.append(characters.slice(end).join(""));
  return quote;
}

function shown(found) {
  const card = element("article");
  if (found.tags !== undefined) {
    const parts = found.entities ?? found.words;
    card.append(element("h2", "", parts.length ? "" : "no entity"), marked(found.text, parts));
    if (found.unread_words) {
      card.append(element("p", "quiet", `${found.unread_words} words at the end were not read`));
    }
    return card;
  }
  const chosen = found.labels ?? (found.label === undefined ? [] : [found.label]);
  const heading = found.score === undefined ? chosen.join(", ") || "no label" : found.score.toFixed(4);
  const texts = [found.text, found.text_pair].filter((text) => text !== undefined);
  card.append(element("h2", "", heading));
  for (const text of texts) card.append(element("blockquote", "", text));
  const probabilities = Object.entries(found.probabilities ?? {});
  if (found.labels === undefined) probabilities.sort((one, other) => other[1] - one[1]);
  for (const [name, value] of probabilities) card.append(bar(name, value, chosen.includes(name)));
  if (found.windows > 1) {
    const read = `read in ${found.windows} windows; window ${found.window} decided`;
    card.append(element("p", "quiet", read));
  }
  return card;
}

async function send() {
  problem.textContent = "";
  button.disabled = true;
  const pair = Object.fromEntries(fields.map((field) => [field.id, field.value]));
  try {
    const answer = await fetch("/predict", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ texts: [fields.length > 1 ? pair : pair.text] }),
    });
    const values = await answer.json();
    if (!answer.ok) throw new Error(values.detail);
    results.prepend(...values.predictions.map(shown));
  } catch (error) {
    problem.textContent = error.message;
  } finally {
    button.disabled = false;
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    if (!button.disabled) send();
  }
});
// A link such as /#text=good fills in a text. The part after # stays in the browser.
const linked = new URLSearchParams(location.hash.slice(1));
for (const field of fields) field.value = linked.get(field.id) ?? "";
if (linked.has("text")) send();
