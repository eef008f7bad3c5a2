import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

// A broker to develop against: MOLDAU_HTTP=localhost:8080 npm run dev
const broker = `http://${process.env.MOLDAU_HTTP ?? "localhost:8080"}`;

export default defineConfig({
  base: "/ui/",
  plugins: [svelte()],
  build: {
    outDir: "../src/moldau/edge/http/console/dist",
    emptyOutDir: true,
    // The policy of the page forbids data: for fonts and scripts, and inline scripts.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
  server: { proxy: { "/api": broker } },
  test: { include: ["tests/**/*.test.ts"] },
});
