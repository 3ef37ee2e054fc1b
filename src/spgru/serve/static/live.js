// One request at a time: while it runs, changes are only noted, and the newest state is asked next.

export function newestOnly(task) {
  let running = false;
  let again = false;
  return async function run() {
    again = true;
    if (running) return;
    running = true;
    try {
      while (again) {
        again = false;
        await task();
      }
    } finally {
      running = false;
    }
  };
}
