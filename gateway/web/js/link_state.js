/** The connection in a word or two, beside a dot. */

export class LinkState {
  #node = document.getElementById("link-state");
  #tick = null;

  show(state, detail) {
    clearInterval(this.#tick);
    this.#node.dataset.state = state;
    if (state === "waiting") this.#countDown(Date.now() + detail);
    else this.#say(WORDS[state]);
  }

  #countDown(until) {
    const say = () => {
      const seconds = Math.max(1, Math.ceil((until - Date.now()) / 1000));
      this.#say(`Offline, next try in ${seconds} s`);
    };
    say();
    this.#tick = setInterval(say, 1000);
  }

  #say(words) {
    this.#node.textContent = words;
  }
}

const WORDS = {
  idle: "No key yet",
  connecting: "Connecting",
  open: "Connected",
  refused: "Key refused",
};
