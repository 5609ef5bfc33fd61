/** Follows growing text, but only while the reader is at its end. */

const NEAR_PX = 48;

export class Follower {
  #scroller;
  #toEnd;
  #following = true;

  /**
   * @param {HTMLElement} scroller
   * @param {HTMLButtonElement} toEnd shown while there is more below
   */
  constructor(scroller, toEnd) {
    this.#scroller = scroller;
    this.#toEnd = toEnd;
    scroller.addEventListener("scroll", () => this.#look(), { passive: true });
    toEnd.addEventListener("click", () => this.jump());
    new ResizeObserver(() => this.grown()).observe(scroller);
  }

  /** The content or the window changed its size. */
  grown() {
    if (this.#following) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#toEnd.hidden = this.#following || this.#distance() < NEAR_PX;
  }

  /** Go to the end and follow again. */
  jump() {
    this.#following = true;
    this.grown();
  }

  #look() {
    this.#following = this.#distance() < NEAR_PX;
    this.#toEnd.hidden = this.#following;
  }

  #distance() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    return scrollHeight - scrollTop - clientHeight;
  }
}
