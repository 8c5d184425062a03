// A table whose rows become cards on a phone, each value with its column's name. ARIA roles keep it a table there.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { sorted, type Order } from "./overview";

export interface Column<Row> {
  name: string;
  isNumber?: boolean;
  /** Whether its values stay on one line. */
  isShort?: boolean;
  /** The value by which rows are sorted; absent: this column does not sort. */
  order?: Order<Row>;
  of: (row: Row) => ComponentChildren;
}

interface Shown<Row> {
  label: string;
  columns: Column<Row>[];
  rows: readonly Row[];
  keyOf: (row: Row) => string;
  /** The index of the column that sorts initially; absent: rows stay in order. */
  sortedBy?: number;
}

export function Table<Row>({ label, columns, rows, keyOf, sortedBy }: Shown<Row>) {
  const [{ by, isReversed }, setSort] = useState({ by: sortedBy ?? -1, isReversed: false });
  const order = columns[by]?.order;
  const shown = order ? sorted(rows, order, isReversed) : rows;
  const sort = (place: number) => setSort((before) => ({ by: place, isReversed: before.by === place && !before.isReversed }));
  const direction = (column: Column<Row>) => {
    const goesUp = (typeof column.order?.(rows[0]!) === "string") !== isReversed;
    return goesUp ? "ascending" : "descending";
  };

  return (
    <table role="table" aria-label={label} class={sortedBy === undefined ? "" : "sorts"}>
      <thead role="rowgroup">
        <tr role="row">
          {columns.map((column, place) => {
            const isSorting = place === by && rows.length > 0;
            return (
              <th
                role="columnheader"
                scope="col"
                key={column.name}
                class={classOf(column)}
                {...(isSorting && { "aria-sort": direction(column) })}
              >
                {column.order ? (
                  <button class="sort" onClick={() => sort(place)}>
                    {column.name}
                    <span aria-hidden="true">{isSorting ? (direction(column) === "ascending" ? " ▲" : " ▼") : ""}</span>
                  </button>
                ) : (
                  column.name
                )}
              </th>
            );
          })}
        </tr>
      </thead>
      <tbody role="rowgroup">
        {shown.map((row) => (
          <tr role="row" key={keyOf(row)}>
            {columns.map((column) => (
              <td role="cell" key={column.name} data-name={column.name} class={classOf(column)}>
                <div>{column.of(row)}</div>
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function classOf({ isNumber, isShort }: { isNumber?: boolean; isShort?: boolean }): string {
  return isNumber ? "number" : isShort ? "short" : "";
}

/** A used share, as a bar and in words. */
export function Bar({ label, value, max, unit }: { label: string; value: number; max: number; unit?: string }) {
  return (
    <>
      {value.toLocaleString("en")} of {max.toLocaleString("en")}{unit && ` ${unit}`}
      <meter aria-label={label} min={0} max={Math.max(1, max)} value={value} />
    </>
  );
}
