// Classic and blocking on purpose: a chosen theme must be in force before the first paint.
try {
  const theme = localStorage.getItem("sluice.theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Storage is blocked: the system's theme stands.
}
