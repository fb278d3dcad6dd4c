// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package template

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	text "github.com/DataDog/datadog-agent/pkg/template/text"
)

// functions returns toJSON and Sprig's functions for strings, numbers, lists, dicts, JSON and
// regular expressions, with the same names and results. Not included are functions that are not
// pure (env, now, rand..., uuidv4, getHostByName, date and duration functions), cryptography,
// semver, floating point arithmetic beyond float64, round, ceil and floor, merge, deepCopy, url...,
// and typographic functions (wrap, abbrev, initials, snakecase and so on).
func (b *budget) functions() text.FuncMap {
	all := text.FuncMap{}
	for _, part := range []text.FuncMap{
		b.builtins(), b.textFunctions(), b.shapeFunctions(), b.regexFunctions(), numberFunctions(), b.sequenceFunctions(),
		b.listFunctions(), b.listParts(), b.dictFunctions(), b.jsonFunctions(), b.valueFunctions(),
	} {
		maps.Copy(all, part)
	}
	return all
}

// builtins returns bounded versions of the language's functions that produce text.
func (b *budget) builtins() text.FuncMap {
	weighed := func(f func(args ...any) string) func(args ...any) (string, error) {
		return func(args ...any) (string, error) {
			if err := b.weigh(args); err != nil {
				return "", err
			}
			return b.text(f(args...))
		}
	}
	return text.FuncMap{
		"print": weighed(fmt.Sprint), "println": weighed(fmt.Sprintln),
		"html": weighed(text.HTMLEscaper), "js": weighed(text.JSEscaper), "urlquery": weighed(text.URLQueryEscaper),
		"printf": func(format string, args ...any) (string, error) {
			if err := errors.Join(b.weigh(args), b.widths(format)); err != nil {
				return "", err
			}
			return b.text(fmt.Sprintf(format, args...))
		},
	}
}

// widths limits the padding that a format requests.
func (b *budget) widths(format string) error {
	sum := 0
	for _, verb := range strings.Split(format, "%")[1:] {
		end := strings.IndexFunc(verb, func(r rune) bool { return !strings.ContainsRune("+-# []0123456789.*", r) })
		if end < 0 {
			end = len(verb)
		}
		if strings.Contains(verb[:end], "*") {
			return errors.New("printf: a width of * is not supported; write the number")
		}
		for _, digits := range strings.FieldsFunc(verb[:end], func(r rune) bool { return r < '0' || r > '9' }) {
			n, err := strconv.Atoi(digits)
			if err != nil || n > maxText {
				return fmt.Errorf("printf: the width %s is too large", line(digits))
			}
			sum += n
		}
		if sum > maxText {
			return b.room(sum)
		}
	}
	return nil
}

func (b *budget) textFunctions() text.FuncMap {
	return text.FuncMap{
		"trim":       strings.TrimSpace,
		"trimAll":    func(cut, s string) string { return strings.Trim(s, cut) },
		"trimall":    func(cut, s string) string { return strings.Trim(s, cut) },
		"trimPrefix": func(cut, s string) string { return strings.TrimPrefix(s, cut) },
		"trimSuffix": func(cut, s string) string { return strings.TrimSuffix(s, cut) },
		"upper":      func(s string) (string, error) { return b.text(strings.ToUpper(s)) },
		"lower":      func(s string) (string, error) { return b.text(strings.ToLower(s)) },
		"nospace": func(s string) (string, error) {
			return b.text(strings.Join(strings.Fields(s), ""))
		},
		"contains":  func(part, s string) (bool, error) { return strings.Contains(s, part), b.scan(s, part) },
		"hasPrefix": func(part, s string) bool { return strings.HasPrefix(s, part) },
		"hasSuffix": func(part, s string) bool { return strings.HasSuffix(s, part) },
		"trunc": func(n int, s string) string {
			switch {
			case n < 0 && len(s)+n > 0:
				return s[len(s)+n:]
			case n >= 0 && len(s) > n:
				return s[:n]
			}
			return s
		},
		"substr": func(start, end int, s string) string {
			switch {
			case start < 0:
				return s[:end]
			case end < 0 || end > len(s):
				return s[start:]
			}
			return s[start:end]
		},
		"plural": func(one, many string, n int) string {
			if n == 1 {
				return one
			}
			return many
		},
		"split": func(sep, s string) (map[string]string, error) {
			return b.numbered(sep, -1, s)
		},
		"splitn":    func(sep string, n int, s string) (map[string]string, error) { return b.numbered(sep, n, s) },
		"splitList": func(sep, s string) ([]string, error) { return strings.Split(s, sep), b.parts(sep, s) },
		"b64enc":    func(s string) (string, error) { return b.text(base64.StdEncoding.EncodeToString([]byte(s))) },
		"b64dec": func(s string) (string, error) {
			data, err := base64.StdEncoding.DecodeString(s)
			if err != nil {
				return err.Error(), nil
			}
			return b.text(string(data))
		},
		"base": path.Base, "dir": path.Dir, "clean": path.Clean, "ext": path.Ext, "isAbs": path.IsAbs,
	}
}

// parts charges for the result of a split.
func (b *budget) parts(sep, s string) error {
	return errors.Join(b.scan(s, sep), b.spend(4*slot*(strings.Count(s, sep)+1)))
}

// numbered splits a text into parts with the keys _0, _1 and so on.
func (b *budget) numbered(sep string, n int, s string) (map[string]string, error) {
	if err := b.parts(sep, s); err != nil {
		return nil, err
	}
	named := map[string]string{}
	for i, part := range strings.SplitN(s, sep, n) {
		named["_"+strconv.Itoa(i)] = part
	}
	return named, nil
}

// shapeFunctions returns functions whose result can be much longer than their arguments.
func (b *budget) shapeFunctions() text.FuncMap {
	indent := func(n int, s string) (string, error) {
		if n < 0 {
			return "", fmt.Errorf("indent of %d; it must not be negative", n)
		}
		if err := b.multiplied(n, strings.Count(s, "\n")+1, len(s)); err != nil {
			return "", err
		}
		pad := strings.Repeat(" ", n)
		return b.text(pad + strings.ReplaceAll(s, "\n", "\n"+pad))
	}
	return text.FuncMap{
		"repeat": func(n int, s string) (string, error) {
			if n < 0 {
				return "", fmt.Errorf("repeat %d times; it must not be negative", n)
			}
			if err := b.multiplied(n, len(s), 0); err != nil {
				return "", err
			}
			return b.text(strings.Repeat(s, n))
		},
		"indent": indent,
		"nindent": func(n int, s string) (string, error) {
			s, err := indent(n, s)
			return "\n" + s, err
		},
		"replace": func(old, new, s string) (string, error) {
			if err := errors.Join(b.scan(s, old), b.multiplied(strings.Count(s, old), len(new), len(s))); err != nil {
				return "", err
			}
			return b.text(strings.ReplaceAll(s, old, new))
		},
		"join": func(sep string, v any) (string, error) {
			items, err := b.strings(v)
			if err != nil {
				return "", err
			}
			size := 0
			for _, item := range items {
				size += len(item)
			}
			if err := b.multiplied(len(items), len(sep), size); err != nil {
				return "", err
			}
			return b.text(strings.Join(items, sep))
		},
		"quote": func(values ...any) (string, error) {
			return b.each(values, func(v any) string { return strconv.Quote(spell(v)) })
		},
		"squote": func(values ...any) (string, error) {
			return b.each(values, func(v any) string { return fmt.Sprintf("'%v'", v) })
		},
		"cat": func(values ...any) (string, error) {
			return b.each(values, func(v any) string { return fmt.Sprintf("%v", v) })
		},
	}
}

// multiplied charges for n texts of the given size plus more bytes.
func (b *budget) multiplied(n, size, more int) error {
	if size > 0 && n > maxText/size {
		return fmt.Errorf("a text of %d times %d bytes is requested; at most %d bytes are allowed", n, size, maxText)
	}
	return b.room(n*size + more)
}

// each joins the results of f for the values that are not nil.
func (b *budget) each(values []any, f func(any) string) (string, error) {
	if err := b.weigh(values); err != nil {
		return "", err
	}
	var made []string
	for _, v := range values {
		if v != nil {
			made = append(made, f(v))
		}
	}
	return b.text(strings.Join(made, " "))
}

// strings returns the elements of a list as strings, without nil. A single value counts as a list
// of one element.
func (b *budget) strings(v any) ([]string, error) {
	if err := b.weigh(v); err != nil {
		return nil, err
	}
	texts := []string{}
	if list, ok := v.([]string); ok {
		return list, nil
	}
	switch value := reflect.ValueOf(v); value.Kind() {
	case reflect.Invalid:
	case reflect.Slice, reflect.Array:
		for i := range value.Len() {
			if item := value.Index(i).Interface(); item != nil {
				texts = append(texts, spell(item))
			}
		}
	default:
		texts = append(texts, spell(v))
	}
	return texts, nil
}

func spell(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	return fmt.Sprint(v) // errors and Stringers as their text
}

func (b *budget) regexFunctions() text.FuncMap {
	find := func(regex, s string, n int) ([]string, error) {
		r, err := b.regex(regex, s)
		if err != nil {
			return nil, err
		}
		return r.FindAllString(s, n), nil
	}
	first := func(regex, s string) (string, error) {
		r, err := b.regex(regex, s)
		if err != nil {
			return "", err
		}
		return r.FindString(s), nil
	}
	split := func(regex, s string, n int) ([]string, error) {
		r, err := b.regex(regex, s)
		if err != nil {
			return nil, err
		}
		return r.Split(s, n), nil
	}
	match := func(regex, s string) (bool, error) {
		r, err := b.regex(regex, s)
		return err == nil && r.MatchString(s), err
	}
	all := func(regex, s, repl string) (string, error) { return b.regexReplace(regex, s, repl, true) }
	literal := func(regex, s, repl string) (string, error) { return b.regexReplace(regex, s, repl, false) }
	return text.FuncMap{
		"regexMatch": match, "mustRegexMatch": match, "regexFind": first, "mustRegexFind": first,
		"regexFindAll": find, "mustRegexFindAll": find, "regexSplit": split, "mustRegexSplit": split,
		"regexReplaceAll": all, "mustRegexReplaceAll": all, "regexReplaceAllLiteral": literal, "mustRegexReplaceAllLiteral": literal,
		"regexQuoteMeta": func(s string) (string, error) { return b.text(regexp.QuoteMeta(s)) },
	}
}

// regex compiles an expression and charges for matching it: each byte of the text may match, with
// every group.
func (b *budget) regex(regex, s string) (*regexp.Regexp, error) {
	const longest = 1000 // maximum length of an expression, whose compilation costs a multiple of it
	if len(regex) > longest {
		return nil, fmt.Errorf("the regular expression has %d bytes; at most %d are allowed", len(regex), longest)
	}
	r, err := regexp.Compile(regex)
	if err != nil {
		return nil, err
	}
	_, steps := b.step(len(s) / 64)
	return r, errors.Join(steps, b.spend(slot*(len(s)+1)*(r.NumSubexp()+1)))
}

func (b *budget) regexReplace(regex, s, repl string, expand bool) (string, error) {
	r, err := b.regex(regex, s)
	if err != nil {
		return "", err
	}
	var out []byte
	end := 0
	for _, match := range r.FindAllStringSubmatchIndex(s, -1) {
		longest := len(repl)
		if expand {
			longest += strings.Count(repl, "$") * (match[1] - match[0])
		}
		if err := b.room(len(out) + match[0] - end + longest); err != nil {
			return "", err
		}
		out = append(out, s[end:match[0]]...)
		if end = match[1]; expand {
			out = r.ExpandString(out, repl, s, match)
		} else {
			out = append(out, repl...)
		}
	}
	return b.text(string(out) + s[end:])
}

// sortedKeys returns the keys of a dict in sorted order.
func sortedKeys(dict map[string]any) []string { return slices.Sorted(maps.Keys(dict)) }
