/** The name of a category, with its colour in front. */
import { words } from "./format";

export function CategoryName({ name }: { name: string }) {
  return (
    <>
      <i style={{ background: `var(--${name})` }} />
      {words(name)}
    </>
  );
}
