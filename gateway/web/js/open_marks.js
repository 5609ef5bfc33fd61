/**
 * Text that still streams often ends inside `**bold` or [a link](http…. Closing what is open, on
 * the copy that is shown, keeps raw marks from flickering until the rest arrives.
 */

const FENCE = /^ {0,3}(`{3,}|~{3,})/;

export function closeOpenMarks(text) {
  const start = text.lastIndexOf("\n\n") + 1;
  if (endsInFence(text)) return text;
  return text.slice(0, start) + closeParagraph(text.slice(start));
}

function endsInFence(text) {
  let open = null;
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line)?.[1];
    if (!mark) continue;
    if (open === null) open = mark;
    else if (mark[0] === open[0] && mark.length >= open.length) open = null;
  }
  return open !== null;
}

function closeParagraph(text) {
  const whole = text.replace(/!?\[([^\]\n]*)\]\([^)\n]*$/, "$1");
  const code = close(whole, "`", whole);
  if (code !== whole) return code;
  const prose = (s) => s.replace(/`[^`]*`/g, ""); // marks inside code are text
  const bold = close(whole, "**", prose(whole));
  return close(bold, "~~", prose(bold));
}

/** Append `mark` when `counted` has an odd number of it; drop it while nothing follows it. */
function close(text, mark, counted) {
  if ((counted.split(mark).length - 1) % 2 === 0) return text;
  const trimmed = text.trimEnd();
  if (trimmed.endsWith(mark)) return trimmed.slice(0, -mark.length);
  const opens = /\S/.test(text[text.lastIndexOf(mark) + mark.length]); // "2 ** 3" opens nothing
  return opens ? trimmed + mark : text;
}
