import { mount } from "svelte";
import App from "./App.svelte";
import "./app.css";
import { followLinks } from "./lib/router.svelte";
import { applyTheme } from "./lib/theme.svelte";

applyTheme();
followLinks();

const target = document.getElementById("app");
if (target === null) throw new Error("index.html has no #app");
mount(App, { target });
