// Each user's usage in tokens.
import { tokensOf, type Counts, type UserUsage } from "./overview";
import { Table, type Column } from "./table";

const MOST_TOKENS_FIRST = 3; // the column of 30 days

export function Users({ users }: { users: UserUsage[] }) {
  const tokens = (name: string, counts: (user: UserUsage) => Counts): Column<UserUsage> => ({
    name,
    isNumber: true,
    order: (user) => tokensOf(counts(user)),
    of: (user) => tokensOf(counts(user)).toLocaleString("en"),
  });
  return (
    <section class="card" aria-labelledby="users">
      <h2 id="users">Users</h2>
      <p class="quiet small">Prompt and output tokens, by days in UTC, today included.</p>
      <Table
        label="Users"
        rows={users}
        keyOf={(user) => user.user_id}
        sortedBy={MOST_TOKENS_FIRST}
        columns={[
          {
            name: "User",
            order: (user) => user.name ?? user.user_id,
            of: (user) => user.name ?? <><code>{user.user_id}</code> <span class="quiet">(deleted)</span></>,
          },
          tokens("Today", (user) => user.today),
          tokens("7 days", (user) => user.days_7),
          tokens("30 days", (user) => user.days_30),
          {
            name: "Requests in 30 days",
            isNumber: true,
            order: (user) => user.days_30.requests,
            of: (user) => user.days_30.requests.toLocaleString("en"),
          },
        ]}
      />
    </section>
  );
}
