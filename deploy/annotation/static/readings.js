// What is read again by itself and after every change. A reply that a later question or change overtakes is not to be
// shown: the later one's is.

export function readings() {
  let acting = 0, asked = 0;
  return {
    // Begins to read. Returns what says whether the replies are still to be shown.
    begin() {
      asked += 1;
      const mine = asked;
      return () => !acting && mine === asked;
    },
    // A change. Returns what went wrong, in words, or nothing.
    async change(doing) {
      acting += 1;
      try {
        await doing();
        return "";
      } catch (problem) {
        return problem.message;
      } finally {
        acting -= 1;
      }
    },
  };
}
