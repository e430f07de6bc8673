// The libraries of the page in one file: Markdown, sanitising and highlighting. package.json says how it is built.
export { Marked } from "marked";
export { default as DOMPurify } from "dompurify";
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";

const languages = { bash, c, css, diff, go, ini, java, javascript, json, python, ruby, rust, sql, xml, yaml };
for (const [name, language] of Object.entries(languages)) hljs.registerLanguage(name, language);
// Near enough for colours.
hljs.registerAliases(["cpp", "c++", "cc", "hpp", "cuda"], { languageName: "c" });
hljs.registerAliases(["ts", "tsx", "typescript"], { languageName: "javascript" });
hljs.registerAliases(["kotlin", "kt", "scala", "csharp", "cs"], { languageName: "java" });
export { hljs };
