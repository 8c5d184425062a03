// Whether the service is there, and which models it has. Knows no page and no chat.
import * as service from "./service";
import type { State } from "./state";

/** The interval of asking again while the service is away. */
export const LOOK_AGAIN_MS = 1000;
/** The interval of asking whether it is still there: the page says within two seconds that it is not. */
const BEAT_MS = 1500;

/** The chat, as far as the connection needs it. */
interface Open {
  readonly state: State;
  set(values: Partial<State>): void;
  /** The service wants to know who asks; a user's session has ended. */
  loggedOut(): void;
}

export class Connection {
  private looking: Promise<void> | null = null;

  constructor(private readonly chat: Open) {}

  /** Whether it is not known that the service is there, and which models it has. */
  get isOpen(): boolean {
    return this.looking === null && this.chat.state.model !== "";
  }

  /** Loads the models, with retries until the service answers. */
  look(): Promise<void> {
    this.looking ??= this.lookUntilThere().finally(() => (this.looking = null));
    return this.looking;
  }

  /** Asks all the time whether the service is still there, while the page is visible and follows no answer, whose end tells it too. */
  follow(): void {
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") void this.look(); // models come, go and sleep
    });
    addEventListener("offline", () => this.lost());
    const beat = async () => {
      const { needsKey, writing } = this.chat.state;
      const isAsked = document.visibilityState === "visible" && this.looking === null && !needsKey && !writing;
      if (isAsked && !(await service.isHealthy())) this.lost();
      setTimeout(() => void beat(), BEAT_MS);
    };
    setTimeout(() => void beat(), BEAT_MS);
  }

  /** The service does not answer. */
  lost(): void {
    this.chat.set({ isReachable: false });
    void this.look();
  }

  /** Resolves when the service is there. Rejects when `signal` is aborted. */
  async there(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const stopped = new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason as Error), { once: true }));
    await Promise.race([this.look(), stopped]);
  }

  private async lookUntilThere(): Promise<void> {
    for (;;) {
      try {
        const models = await service.models();
        const chatting = models.filter(service.canChat);
        const isServed = chatting.some((one) => one.id === this.chat.state.model);
        const model = isServed ? this.chat.state.model : ((chatting[0] ?? models[0])?.id ?? this.chat.state.model);
        const isReachable = await service.isHealthy();
        this.chat.set({ models, model, isReachable, needsKey: false });
        if (isReachable) return;
      } catch (error) {
        if (service.isLoggedOut(error)) {
          this.chat.set({ isReachable: true });
          this.chat.loggedOut();
          return;
        }
        this.chat.set({ isReachable: false });
      }
      await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN_MS));
    }
  }
}
