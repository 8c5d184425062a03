// Icons in the colour of the surrounding text.
const PATHS = {
  menu: "M4 6h16M4 12h16M4 18h16",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM5 15V4h11",
  check: "M5 12l5 5 9-10",
  retry: "M20 11a8 8 0 1 0-2 6M20 5v6h-6",
  edit: "M4 20l1-4L16 5l3 3L8 19l-4 1",
  left: "M15 6l-6 6 6 6",
  right: "M9 6l6 6-6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  open: "M6 9l6 6 6-6",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  pin: "M9 4h6l-1 7 3 3H7l3-3zM12 14v6",
  lock: "M6 11h12v9H6zM9 11V8a3 3 0 0 1 6 0v3",
  unlocked: "M6 11h12v9H6zM9 11V7a3 3 0 0 1 5.8-1M10 16h4",
  clip: "M20 11.5l-8 8a5 5 0 0 1-7-7l8.5-8.5a3.3 3.3 0 0 1 4.7 4.7l-8.3 8.3a1.7 1.7 0 0 1-2.4-2.4l7.5-7.5",
  file: "M7 3h7l4 4v14H7zM14 3v4h4",
  close: "M6 6l12 12M18 6L6 18",
  theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
};

export function Icon({ name }: { name: keyof typeof PATHS }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
