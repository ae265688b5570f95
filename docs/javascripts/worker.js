// The search runs in a worker, and browsers start none on pages that were opened as files. There its script runs in a
// hidden frame instead, with the functions of a worker that the search uses. As with a worker, messages are copies and
// arrive later.
if (location.protocol === "file:") {
  window.Worker = class {
    onmessage = null;
    #frame = document.createElement("iframe");
    #loaded;

    constructor(url) {
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const inside = this.#frame.contentWindow;
      inside.postMessage = (message) => {
        const data = structuredClone(message);
        setTimeout(() => this.onmessage?.(new MessageEvent("message", { data })));
      };
      this.#loaded = new Promise((resolve) => {
        const script = inside.document.createElement("script");
        script.src = new URL(url, location.href);
        script.onload = () => resolve(inside);
        inside.document.body.append(script);
      });
    }

    postMessage(message) {
      const data = structuredClone(message);
      this.#loaded.then((inside) => inside.onmessage({ data }));
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
