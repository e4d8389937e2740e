// What a lead decides about a batch: buttons for what is possible now, each with what it means and a reason.

import { $, call, make } from "./api.js";
import { place } from "./place.js";

const MEANS = {
  "extend": ["Move the deadline", "The run waits until the new deadline."],
  "ask-again": ["Ask again", "Blocked questions go to further people."],
  "drop-blocked": ["Drop blocked questions", "They are not asked again. Their missing labels are bounded: as if all said safe, and as if all said unsafe."],
  "accept": ["Continue with the labels that are there", "The batch is closed now. Missing labels are bounded: the cost estimate counts them as unsafe, its interval reaches to where they all say safe, and a certificate counts them as the worst. Missing pairs are not trained on."],
  "stop": ["Stop the run", "The run ends with an error. Its answers stay stored, and the batch can be opened again."],
  "reopen": ["Open again", "The questions are asked again; start the run with --resume."],
};
const SITUATIONS = {
  waiting: "The run waits for these labels.", overdue: "The deadline has passed: the run ends or asks for a decision.",
  complete: "All labels are there: the run takes them.", frozen: "The run has all its labels.",
  accepted: "The run continues without the missing labels.", stopped: "The batch is stopped: its run cannot continue until it is open again.",
};
// Of a file of questions, whose labels no run takes.
const ALONE_MEANS = {
  "extend": ["Move the deadline", "People may answer until the new deadline."],
  "accept": ["Close with the labels that are there", "The batch is closed now, and nobody is asked about it any more. Its labels can be exported."],
  "stop": ["Stop the batch", "Nobody is asked about it any more. Its answers stay stored, and the batch can be opened again."],
  "reopen": ["Open again", "The questions are asked again."],
};
const ALONE_SITUATIONS = {
  waiting: "People are being asked for these labels.", overdue: "The deadline has passed.",
  complete: "All labels are there and can be exported.", frozen: "All labels are there and can be exported.",
  accepted: "The batch is closed without the missing labels.", stopped: "The batch is stopped: nobody is asked until it is open again.",
};
const TIMES = [["1800", "30 minutes"], ["7200", "2 hours"], ["86400", "1 day"], ["259200", "3 days"], ["", "no deadline"]];
let batch = null, done = null;
let asked = null; // what the dialog is about: another batch may be shown behind it meanwhile

const situation = (round) => (round.of_run ? SITUATIONS : ALONE_SITUATIONS)[round.situation];
const means = (name) => (batch.of_run ? MEANS : { ...MEANS, ...ALONE_MEANS })[name];
const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);

// The panel of one batch; `after` is called when a decision was taken.
export function showDecisions(round, after) {
  [batch, done] = [round, after];
  const choices = round ? round.choices : [];
  $("situation").textContent = round ? situation(round) : "";
  $("outlook").textContent = round && round.outlook && round.missing
    ? `Unsafe so far: ${percent(round.outlook.observed)}; with the ${round.missing} missing labels between ${percent(round.outlook.all_safe)} and ${percent(round.outlook.all_unsafe)}.`
    : "";
  place($("choices"), ...choices.map((name) => {
    const button = make("button", { type: "button", "data-name": name }, means(name)[0]);
    button.addEventListener("click", () => ask(name));
    return button;
  }));
}

function ask(name) {
  asked = { batch, decision: name };
  $("decide-title").textContent = `${means(name)[0]}: round ${batch.round}, ${batch.purpose}`;
  $("decide-means").textContent = means(name)[1];
  $("decide-until").parentElement.hidden = name !== "extend";
  $("decide-until").replaceChildren(...TIMES.map(([seconds, words]) => make("option", { value: seconds }, words)));
  $("decide-reason").value = "";
  $("decide-problem").textContent = "";
  $("decide").showModal();
}

async function send(event) {
  event.preventDefault();
  const seconds = Number($("decide-until").value);
  const body = { decision: asked.decision, reason: $("decide-reason").value.trim() };
  if (asked.decision === "extend" && seconds) body.after_s = seconds;
  try {
    await call("POST", `/rounds/${asked.batch.id}/decision`, body);
    $("decide").close();
    done();
  } catch (problem) {
    $("decide-problem").textContent = problem.message;
  }
}

$("decide-form").addEventListener("submit", send);
$("decide-back").addEventListener("click", () => $("decide").close());
