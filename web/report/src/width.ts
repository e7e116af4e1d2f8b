/** The width of an element, measured before the browser paints, so that the first frame is complete. */
import { useSignal, type Signal } from "@preact/signals";
import type { RefObject } from "preact";
import { useLayoutEffect } from "preact/hooks";

export function useWidth(element: RefObject<HTMLElement | null>): Signal<number> {
  const width = useSignal(0);
  useLayoutEffect(() => {
    const measure = () => (width.value = element.current!.clientWidth);
    const observer = new ResizeObserver(measure);
    measure();
    observer.observe(element.current!);
    return () => observer.disconnect();
  }, []);
  return width;
}
