/**
 * The pictures of a question that is being written: chosen, pasted, dropped or taken by the camera, and
 * made small enough to be sent with each question of the conversation.
 */
import { button, element } from "./elements.js";

const LONGEST_EDGE = 1024;
const MOST_CHARS = 150_000; // of a data: URL
const MOST = 8;
const AS_THEY_ARE = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const QUALITIES = [0.85, 0.7, 0.5];

/** Those of files that are pictures, by what they say of themselves. */
export const arePictures = (files) => [...files].filter(({ type }) => type.startsWith("image/"));

/** Pictures that were sent, as the page shows them. */
export function shown(urls) {
  return element("div", { class: "pictures" }, urls.map(view));
}

/** A picture on a canvas: the page's policy lets no image come from a data: URL. */
function view(url, place) {
  const label = `Picture ${place + 1}`;
  const canvas = element("canvas", { role: "img", "aria-label": label });
  decoded(url).then((bitmap) => draw(canvas, bitmap, Infinity)).catch(() => {
    canvas.setAttribute("aria-label", `${label}, which this browser cannot show`);
  });
  return canvas;
}

async function decoded(url) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (character) => character.charCodeAt(0));
  return bitmapOf(new Blob([bytes]));
}

const bitmapOf = (blob) => createImageBitmap(blob, { imageOrientation: "from-image" });

export class Pictures {
  #box = document.getElementById("pictures");
  #buttons = ["add-pictures", "take-picture"].map((id) => document.getElementById(id));
  #onChange;
  #say;
  urls = [];
  sees = false; // the model that would answer

  /** `onChange` is called when there are others, `say` with what is wrong with one. */
  constructor(onChange, say) {
    this.#onChange = onChange;
    this.#say = say;
    for (const node of this.#buttons) {
      const input = document.getElementById(node.dataset.input);
      node.addEventListener("click", () => input.click());
      input.addEventListener("change", async () => {
        await this.take(input.files);
        input.value = ""; // The same file may be chosen again.
      });
    }
    addEventListener("dragover", (event) => this.sees && event.dataTransfer?.types.includes("Files") && event.preventDefault());
    addEventListener("drop", (event) => {
      if (!this.sees || !event.dataTransfer?.files.length) return;
      event.preventDefault();
      this.take(event.dataTransfer.files);
    });
  }

  /** Another model may answer from now on. */
  show(sees) {
    this.sees = sees;
    for (const node of this.#buttons) node.hidden = !sees;
    if (!sees && this.urls.length) this.put([]);
  }

  /** Take what of these files is a picture. */
  async take(files) {
    for (const file of arePictures(files)) {
      if (this.urls.length >= MOST) return this.#say(`A question has at most ${MOST} pictures.`);
      const url = await small(file).catch(() => null);
      if (url) this.put([...this.urls, url]);
      else this.#say(`${file.name} is no picture that this browser can show.`);
    }
  }

  /** Have exactly these. */
  put(urls) {
    this.urls = urls;
    this.#box.hidden = !urls.length;
    this.#box.replaceChildren(...urls.map((src, place) => {
      const remove = button("×", () => this.put(this.urls.filter((_, other) => other !== place)), { "aria-label": `Remove picture ${place + 1}` });
      return element("span", {}, view(src, place), remove);
    }));
    this.#onChange();
  }
}

/** A picture as a data: URL. Raises for what is none. */
async function small(file) {
  const bitmap = await bitmapOf(file);
  const fits = Math.max(bitmap.width, bitmap.height) <= LONGEST_EDGE;
  if (fits && AS_THEY_ARE.includes(file.type)) {
    const url = await asUrl(file);
    if (url.length <= MOST_CHARS) return url;
  }
  for (let edge = LONGEST_EDGE; ; edge /= 2) {
    for (const quality of QUALITIES) {
      const url = draw(element("canvas"), bitmap, edge).toDataURL("image/jpeg", quality);
      if (url.length <= MOST_CHARS || edge < 64) return url;
    }
  }
}

function draw(canvas, bitmap, edge) {
  const scale = Math.min(1, edge / Math.max(bitmap.width, bitmap.height));
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff"; // What is transparent shows white, as it does to the model.
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas;
}

function asUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = reject;
    reader.readAsDataURL(file);
  });
}
