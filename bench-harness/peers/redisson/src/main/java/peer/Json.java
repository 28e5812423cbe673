package peer;

import java.util.*;

/** Tiny JSON reader and writer (Map, List, String, Long, Double, Boolean, null). */
final class Json {
    private final String s;
    private int i;

    private Json(String s) {
        this.s = s;
    }

    static Object parse(String s) {
        Json j = new Json(s);
        Object v = j.value();
        j.ws();
        if (j.i != s.length()) {
            throw new IllegalArgumentException("trailing text at " + j.i);
        }
        return v;
    }

    private void ws() {
        while (i < s.length() && Character.isWhitespace(s.charAt(i))) {
            i++;
        }
    }

    private char need(char c) {
        ws();
        if (i >= s.length() || s.charAt(i) != c) {
            throw new IllegalArgumentException("expected " + c + " at " + i);
        }
        i++;
        return c;
    }

    private boolean take(char c) {
        ws();
        if (i < s.length() && s.charAt(i) == c) {
            i++;
            return true;
        }
        return false;
    }

    private Object value() {
        ws();
        if (i >= s.length()) {
            throw new IllegalArgumentException("empty");
        }
        char c = s.charAt(i);
        if (c == '{') {
            i++;
            Map<String, Object> m = new LinkedHashMap<>();
            if (take('}')) {
                return m;
            }
            do {
                ws();
                String k = string();
                need(':');
                m.put(k, value());
            } while (take(','));
            need('}');
            return m;
        }
        if (c == '[') {
            i++;
            List<Object> l = new ArrayList<>();
            if (take(']')) {
                return l;
            }
            do {
                l.add(value());
            } while (take(','));
            need(']');
            return l;
        }
        if (c == '"') {
            return string();
        }
        int b = i;
        while (i < s.length() && ",]} \t\r\n".indexOf(s.charAt(i)) < 0) {
            i++;
        }
        String w = s.substring(b, i);
        switch (w) {
            case "true": return true;
            case "false": return false;
            case "null": return null;
            default:
                if (w.matches("-?\\d+")) {
                    return Long.parseLong(w);
                }
                return Double.parseDouble(w);
        }
    }

    private String string() {
        need('"');
        StringBuilder b = new StringBuilder();
        while (true) {
            char c = s.charAt(i++);
            if (c == '"') {
                return b.toString();
            }
            if (c != '\\') {
                b.append(c);
                continue;
            }
            c = s.charAt(i++);
            switch (c) {
                case 'n': b.append('\n'); break;
                case 't': b.append('\t'); break;
                case 'r': b.append('\r'); break;
                case 'b': b.append('\b'); break;
                case 'f': b.append('\f'); break;
                case 'u':
                    b.append((char) Integer.parseInt(s.substring(i, i + 4), 16));
                    i += 4;
                    break;
                default: b.append(c);
            }
        }
    }

    static String write(Object o) {
        StringBuilder b = new StringBuilder();
        write(b, o);
        return b.toString();
    }

    private static void write(StringBuilder b, Object o) {
        if (o instanceof Map<?, ?> m) {
            b.append('{');
            String sep = "";
            for (Map.Entry<?, ?> e : m.entrySet()) {
                b.append(sep);
                write(b, e.getKey().toString());
                b.append(':');
                write(b, e.getValue());
                sep = ",";
            }
            b.append('}');
        } else if (o instanceof Collection<?> c) {
            b.append('[');
            String sep = "";
            for (Object e : c) {
                b.append(sep);
                write(b, e);
                sep = ",";
            }
            b.append(']');
        } else if (o instanceof String s) {
            b.append('"');
            for (char ch : s.toCharArray()) {
                if (ch == '"' || ch == '\\') {
                    b.append('\\').append(ch);
                } else if (ch < 0x20) {
                    b.append(String.format("\\u%04x", (int) ch));
                } else {
                    b.append(ch);
                }
            }
            b.append('"');
        } else {
            b.append(o);
        }
    }
}
