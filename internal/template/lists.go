// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package template

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	text "github.com/DataDog/datadog-agent/pkg/template/text"
)

// items returns the elements of a list of any type as a new slice.
func (b *budget) items(name string, list any) ([]any, error) {
	value := reflect.ValueOf(list)
	if value.Kind() != reflect.Slice && value.Kind() != reflect.Array {
		return nil, fmt.Errorf("%s requires a list, not %T", name, list)
	}
	if err := b.spend(slot * (value.Len() + 1)); err != nil {
		return nil, err
	}
	items := make([]any, 0, value.Len()+1)
	for i := range value.Len() {
		items = append(items, value.Index(i).Interface())
	}
	return items, nil
}

func (b *budget) listFunctions() text.FuncMap {
	list := func(items ...any) ([]any, error) { return items, b.spend(slot * len(items)) }
	push := func(list, v any) ([]any, error) {
		items, err := b.items("append", list)
		return append(items, v), err
	}
	prepend := func(list, v any) ([]any, error) {
		items, err := b.items("prepend", list)
		return slices.Insert(items, 0, v), err
	}
	reverse := func(list any) ([]any, error) {
		items, err := b.items("reverse", list)
		slices.Reverse(items)
		return items, err
	}
	compact := func(list any) ([]any, error) {
		items, err := b.items("compact", list)
		return slices.DeleteFunc(items, empty), err
	}
	uniq := func(list any) ([]any, error) {
		items, err := b.items("uniq", list)
		kept := []any{}
		for _, item := range items {
			if err == nil {
				err = b.comparing(item, len(kept))
			}
			if err != nil {
				return nil, err
			}
			if !holds(kept, item) {
				kept = append(kept, item)
			}
		}
		return kept, err
	}
	without := func(list any, omit ...any) ([]any, error) {
		items, err := b.items("without", list)
		kept := []any{}
		for _, item := range items {
			if err == nil {
				err = b.comparing(item, len(omit))
			}
			if err != nil {
				return nil, err
			}
			if !holds(omit, item) {
				kept = append(kept, item)
			}
		}
		return kept, err
	}
	has := func(needle, list any) (bool, error) {
		if list == nil {
			return false, nil
		}
		items, err := b.items("has", list)
		if err = errors.Join(err, b.comparing(needle, len(items))); err != nil {
			return false, err
		}
		return holds(items, needle), nil
	}
	return text.FuncMap{
		"list": list, "tuple": list, "append": push, "push": push, "mustAppend": push, "mustPush": push, "prepend": prepend, "mustPrepend": prepend,
		"reverse": reverse, "mustReverse": reverse, "compact": compact, "mustCompact": compact, "uniq": uniq, "mustUniq": uniq,
		"without": without, "mustWithout": without, "has": has, "mustHas": has,
		"concat": func(lists ...any) (any, error) {
			var joined []any
			for _, list := range lists {
				items, err := b.items("concat", list)
				if err != nil {
					return nil, err
				}
				joined = append(joined, items...)
			}
			return joined, nil
		},
		"sortAlpha": func(list any) ([]string, error) {
			items, err := b.strings(list)
			if err = errors.Join(err, b.spend(slot*len(items))); err != nil {
				return nil, err
			}
			items = slices.Clone(items)
			slices.Sort(items)
			return items, nil
		},
	}
}

// comparing charges for comparisons of a value with others.
func (b *budget) comparing(v any, others int) error {
	_, err := b.step(others / 16)
	return errors.Join(err, b.weigh(v))
}

func holds(items []any, v any) bool {
	return slices.ContainsFunc(items, func(item any) bool { return reflect.DeepEqual(v, item) })
}

// listParts returns functions that select parts of a list.
func (b *budget) listParts() text.FuncMap {
	// one returns a function for the element that at selects, or nil for an empty list.
	one := func(name string, at func(n int) int) func(any) (any, error) {
		return func(list any) (any, error) {
			value := reflect.ValueOf(list)
			if value.Kind() != reflect.Slice && value.Kind() != reflect.Array {
				return nil, fmt.Errorf("%s requires a list, not %T", name, list)
			}
			if value.Len() == 0 {
				return nil, nil
			}
			return value.Index(at(value.Len())).Interface(), nil
		}
	}
	// some returns a function for the elements from and to, or nil for an empty list.
	some := func(name string, from, to int) func(any) ([]any, error) {
		return func(list any) ([]any, error) {
			items, err := b.items(name, list)
			if err != nil || len(items) == 0 {
				return nil, err
			}
			return items[from : len(items)-to], nil
		}
	}
	first, last := one("first", func(int) int { return 0 }), one("last", func(n int) int { return n - 1 })
	rest, initial := some("rest", 1, 0), some("initial", 0, 1)
	slice := func(list any, indices ...any) (any, error) {
		items, err := b.items("slice", list)
		if err != nil || len(items) == 0 {
			return nil, err
		}
		from, to := 0, len(items)
		if len(indices) > 0 {
			from = int(integer(indices[0]))
		}
		if len(indices) > 1 {
			to = int(integer(indices[1]))
		}
		if from < 0 || to < from || to > len(items) {
			return nil, fmt.Errorf("slice from %d to %d of a list of %d", from, to, len(items))
		}
		return reflect.ValueOf(list).Slice(from, to).Interface(), nil
	}
	return text.FuncMap{
		"first": first, "mustFirst": first, "last": last, "mustLast": last,
		"rest": rest, "mustRest": rest, "initial": initial, "mustInitial": initial, "slice": slice, "mustSlice": slice,
	}
}

func (b *budget) dictFunctions() text.FuncMap {
	type dict = map[string]any
	return text.FuncMap{
		"dict": func(entries ...any) (dict, error) {
			made := dict{}
			for i := 0; i < len(entries); i += 2 {
				if err := b.weigh(entries[i]); err != nil {
					return nil, err
				}
				if made[spell(entries[i])] = ""; i+1 < len(entries) {
					made[spell(entries[i])] = entries[i+1]
				}
			}
			return made, b.spend(4 * slot * len(entries))
		},
		"get": func(d dict, key string) any {
			if v, ok := d[key]; ok {
				return v
			}
			return ""
		},
		"set": func(d dict, key string, v any) (dict, error) {
			if d == nil {
				return nil, errors.New("set requires a dict, not nil")
			}
			d[key] = v
			return d, b.spend(4*slot + len(key))
		},
		"unset":  func(d dict, key string) dict { delete(d, key); return d },
		"hasKey": func(d dict, key string) bool { _, ok := d[key]; return ok },
		// In Sprig, the order of keys and values is random. Here they are sorted by key.
		"keys": func(dicts ...dict) ([]string, error) {
			keys := []string{}
			for _, d := range dicts {
				keys = append(keys, sortedKeys(d)...)
			}
			return keys, b.spend(slot * len(keys))
		},
		"values": func(d dict) ([]any, error) {
			values := []any{}
			for _, key := range sortedKeys(d) {
				values = append(values, d[key])
			}
			return values, b.spend(slot * len(values))
		},
		"pluck": func(key string, dicts ...dict) []any {
			found := []any{}
			for _, d := range dicts {
				if v, ok := d[key]; ok {
					found = append(found, v)
				}
			}
			return found
		},
		"pick": func(d dict, keys ...string) (dict, error) {
			kept := dict{}
			for _, key := range keys {
				if v, ok := d[key]; ok {
					kept[key] = v
				}
			}
			return kept, b.spend(4 * slot * len(kept))
		},
		"omit": func(d dict, keys ...string) (dict, error) {
			kept := dict{}
			for key, v := range d {
				if !slices.Contains(keys, key) {
					kept[key] = v
				}
			}
			return kept, b.spend(4 * slot * len(kept))
		},
		"dig": func(path ...any) (any, error) { return dig(path) },
	}
}

// dig looks up a path of keys in nested dicts: dig "a" "b" fallback dict.
func dig(path []any) (any, error) {
	if len(path) < 3 {
		return nil, errors.New("dig requires one or more keys, a fallback and a dict")
	}
	keys, fallback, v := path[:len(path)-2], path[len(path)-2], path[len(path)-1]
	for _, key := range keys {
		d, isDict := v.(map[string]any)
		name, isText := key.(string)
		if !isDict || !isText {
			return nil, fmt.Errorf("dig looks up %v in a %T; it must be a text in a dict", key, v)
		}
		next, ok := d[name]
		if !ok {
			return fallback, nil
		}
		v = next
	}
	return v, nil
}
