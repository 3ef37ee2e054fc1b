// One request at a time: while it runs, changes are only noted, and the newest state is asked next.

// What is returned resolves when the newest state has been answered.
export function newestOnly(task) {
  let running = null;
  let again = false;
  async function work() {
    try {
      while (again) {
        again = false;
        await task();
      }
    } finally {
      running = null;
    }
  }
  return function run() {
    again = true;
    running ??= work();
    return running;
  };
}
