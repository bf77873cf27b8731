// Reads a JSON list of jobs {cols, rows, data: [base64]}, feeds each to an xterm.js terminal and
// prints a JSON list of what the terminals then show.
"use strict";
const { Terminal } = require(process.argv[2]);

function shown(t) {
  const buffer = t.buffer.active;
  const links = t._core._oscLinkService;
  const rows = [];
  const cell = buffer.getNullCell();
  for (let y = 0; y < t.rows; y++) {
    const line = buffer.getLine(buffer.baseY + y);
    const row = [];
    for (let x = 0; x < t.cols; x++) {
      line.getCell(x, cell);
      const id = cell.hasExtendedAttrs() && cell.extended ? cell.extended.urlId : 0;
      const link = id ? links.getLinkData(id).uri : "";
      row.push([cell.getChars() || (cell.getWidth() ? " " : ""), cell.getWidth(), cell.getFgColor(), cell.isInverse() > 0, link]);
    }
    rows.push(row);
  }
  const history = [];
  for (let y = 0; y < buffer.baseY; y++) history.push(buffer.getLine(y).translateToString(true));
  return { rows, history, x: buffer.cursorX, y: buffer.cursorY, type: buffer.type };
}

async function main() {
  const jobs = JSON.parse(require("fs").readFileSync(0, "utf8"));
  const answers = [];
  for (const { cols, rows, data } of jobs) {
    const t = new Terminal({ cols, rows, scrollback: 1000, allowProposedApi: true });
    for (const piece of data) {
      await new Promise((done) => t.write(Buffer.from(piece, "base64"), done));
    }
    answers.push(shown(t));
    t.dispose();
  }
  process.stdout.write(JSON.stringify(answers));
}
main();
