// The conversation; it scrolls with a growing answer only while its end is visible.
import { useEffect, useRef, useState } from "preact/hooks";

import { Answer } from "./answer";
import type { Chat } from "./chat";
import { Icon } from "./icons";
import { Question } from "./question";
import { focusComposer } from "./sidebar";
import { isMute } from "./service";
import { RefusedCard } from "./outcome";
import { firstSeen, path } from "./tree";

const NEAR_PX = 48;
const STARTERS = [
  "Explain how a hash table works, with an example in Python.",
  "Write a polite reply that declines an invitation.",
  "What should I check before I sign a lease?",
];

export function Thread({ chat }: { chat: Chat }) {
  const { tree, id, writing, isAnswered, isReachable, refused } = chat.state;
  const turns = path(tree);
  const seen = firstSeen(turns);
  const frame = useRef<HTMLDivElement>(null);
  const isFollowing = useRef(true);
  const [isAway, setAway] = useState(false);
  const last = turns.at(-1);

  const toEnd = () => {
    const place = frame.current;
    if (place !== null) place.scrollTop = place.scrollHeight;
  };
  useEffect(() => {
    isFollowing.current = true;
    if (turns.length) toEnd();
  }, [id, turns.length, refused]);
  useEffect(() => {
    const place = frame.current;
    const content = place?.firstElementChild;
    if (!place || !content) return;
    let topBefore = place.scrollTop;
    const onScroll = () => {
      // Turns that become visible get their true height, which moves the end away. Only the user scrolls up.
      if (place.scrollHeight - place.scrollTop - place.clientHeight < NEAR_PX) isFollowing.current = true;
      else if (place.scrollTop < topBefore) isFollowing.current = false;
      topBefore = place.scrollTop;
      setAway(!isFollowing.current);
    };
    // Growing content moves the end away although the user did not scroll.
    const watch = new ResizeObserver(() => isFollowing.current && toEnd());
    watch.observe(content);
    watch.observe(place);
    place.addEventListener("scroll", onScroll, { passive: true });
    // A wheel or a key upwards counts at once, before the page has moved.
    const onWheel = (event: WheelEvent) => event.deltaY < 0 && (isFollowing.current = false);
    place.addEventListener("wheel", onWheel, { passive: true });
    return () => {
      watch.disconnect();
      place.removeEventListener("scroll", onScroll);
      place.removeEventListener("wheel", onWheel);
    };
  }, []);

  return (
    <div class="thread-frame">
      <div class="thread" ref={frame} tabIndex={-1}>
        <div class="column">
          {turns.length === 0 && <Welcome chat={chat} />}
          {turns.map((one) => {
            const siblings = tree.children[one.parent] ?? [];
            const version = { place: siblings.indexOf(one.id), count: siblings.length, isBusy: writing !== "" };
            const shown = one.role === "user" ? (
              <Question key={one.id} chat={chat} turn={one} {...version} />
            ) : (
              <Answer key={one.id} chat={chat} turn={one} {...version} isLast={one === last} isReachable={isReachable} />
            );
            return one.id === seen ? [<p key="seen" class="seen small quiet" role="note">The model no longer sees what is above</p>, shown] : shown;
          })}
          <RefusedCard chat={chat} isBusy={writing !== ""} />
          {last?.role === "user" && !writing && !isAnswered && !refused && (
            <div class="card">
              <p>There is no answer.</p>
              <button onClick={() => void chat.answer(last.id)}>Answer</button>
            </div>
          )}
        </div>
      </div>
      {isAway && (
        <button class="jump" onClick={() => ((isFollowing.current = true), toEnd())}>
          <Icon name="down" /> Jump to latest
        </button>
      )}
    </div>
  );
}

function Welcome({ chat }: { chat: Chat }) {
  const { models, model, user, isTemporary } = chat.state;
  if (isMute(models, model)) {
    return (
      <section class="welcome">
        <p><b>{model}</b> has no chat template, so it can't chat. Whoever runs this service can give it one.</p>
      </section>
    );
  }
  return (
    <section class="welcome">
      <h1>What can I help with?</h1>
      <p class="quiet">
        {model ? <><b>{model}</b> answers, on this service's own machine. </> : null}
        {isTemporary
          ? "This chat is kept nowhere: it is gone when you leave it."
          : user
          ? "Your chats are kept encrypted for you; nobody else can open them here."
          : "What you write stays between this browser and this service, which keeps no chats."}
      </p>
      <div class="starters">
        {STARTERS.map((text) => (
          <button key={text} onClick={() => (chat.draft(text), focusComposer())}>{text}</button>
        ))}
      </div>
    </section>
  );
}
