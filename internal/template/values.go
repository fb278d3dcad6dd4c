// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	text "github.com/DataDog/datadog-agent/pkg/template/text"
)

func numberFunctions() text.FuncMap {
	return text.FuncMap{
		"atoi": func(s string) int {
			n, err := strconv.Atoi(s)
			if err != nil {
				return 0 // like Sprig
			}
			return n
		},
		"int": func(v any) int { return int(integer(v)) }, "int64": integer, "float64": float,
		"add1": func(v any) int64 { return integer(v) + 1 },
		"add": func(values ...any) (sum int64) {
			for _, v := range values {
				sum += integer(v)
			}
			return sum
		},
		"sub": func(v, w any) int64 { return integer(v) - integer(w) },
		"mul": func(v any, values ...any) int64 {
			product := integer(v)
			for _, w := range values {
				product *= integer(w)
			}
			return product
		},
		"div": func(v, w any) (int64, error) {
			if integer(w) == 0 {
				return 0, errors.New("division by zero")
			}
			return integer(v) / integer(w), nil
		},
		"mod": func(v, w any) (int64, error) {
			if integer(w) == 0 {
				return 0, errors.New("division by zero")
			}
			return integer(v) % integer(w), nil
		},
		"max": func(v any, values ...any) int64 {
			return choose(v, values, func(n, best int64) bool { return n > best })
		},
		"min": func(v any, values ...any) int64 {
			return choose(v, values, func(n, best int64) bool { return n < best })
		},
		"biggest": func(v any, values ...any) int64 {
			return choose(v, values, func(n, best int64) bool { return n > best })
		},
		"ceil": func(v any) float64 { return math.Ceil(float(v)) }, "floor": func(v any) float64 { return math.Floor(float(v)) },
		"round": func(v any, places int, half ...float64) float64 {
			on, pow := .5, math.Pow(10, float64(places))
			if len(half) > 0 {
				on = half[0]
			}
			digits := pow * float(v)
			if _, rest := math.Modf(digits); rest >= on {
				return math.Ceil(digits) / pow
			}
			return math.Floor(digits) / pow
		},
	}
}

func choose(v any, values []any, better func(n, best int64) bool) int64 {
	best := integer(v)
	for _, w := range values {
		if n := integer(w); better(n, best) {
			best = n
		}
	}
	return best
}

// integer converts a value to a number, or 0 if it is not one.
func integer(v any) int64 {
	switch value := indirect(v); value.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return value.Int()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return int64(value.Uint())
	case reflect.Float32, reflect.Float64:
		return int64(value.Float())
	case reflect.Bool:
		if value.Bool() {
			return 1
		}
	case reflect.String:
		s := value.String()
		if whole, zeros, ok := strings.Cut(s, "."); ok && zeros != "" && strings.Trim(zeros, "0") == "" {
			s = whole
		}
		if n, err := strconv.ParseInt(s, 0, 64); err == nil {
			return n
		}
	}
	return 0
}

func float(v any) float64 {
	value := indirect(v)
	switch value.Kind() {
	case reflect.Float32, reflect.Float64:
		return value.Float()
	case reflect.String:
		n, err := strconv.ParseFloat(value.String(), 64)
		if err != nil {
			return 0
		}
		return n
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return float64(value.Uint())
	}
	return float64(integer(v))
}

func indirect(v any) reflect.Value {
	value := reflect.ValueOf(v)
	for value.Kind() == reflect.Pointer && !value.IsNil() {
		value = value.Elem()
	}
	return value
}

func (b *budget) sequenceFunctions() text.FuncMap {
	return text.FuncMap{
		"until": func(n int) ([]int, error) {
			if n < 0 {
				return b.sequence(0, n, -1)
			}
			return b.sequence(0, n, 1)
		},
		"untilStep": b.sequence,
		"seq":       b.seq,
	}
}

// sequence returns the numbers from start up to but not including stop.
func (b *budget) sequence(start, stop, step int) ([]int, error) {
	numbers := []int{}
	up := stop >= start
	if step == 0 || up != (step > 0) {
		return numbers, nil
	}
	distance, stride := uint64(stop)-uint64(start), uint64(step)
	if !up {
		distance, stride = -distance, -stride
	}
	count := (distance + stride - 1) / stride
	if count > maxSteps || distance > math.MaxInt64 {
		return nil, fmt.Errorf("a list of %d numbers is requested; at most %d are allowed", count, maxSteps)
	}
	for i := range int(count) {
		numbers = append(numbers, start+i*step)
	}
	return numbers, b.spend(slot * int(count))
}

// seq returns the same sequence as the seq command, including the end.
func (b *budget) seq(params ...int) (string, error) {
	start, step, end := 1, 1, 0
	switch len(params) {
	case 1:
		end = params[0]
	case 2:
		start, end = params[0], params[1]
	case 3:
		start, step, end = params[0], params[1], params[2]
		if end < start && step > 0 {
			return "", nil
		}
	default:
		return "", nil
	}
	toward := 1
	if end < start {
		toward = -1
	}
	if len(params) < 3 {
		step = toward
	}
	numbers, err := b.sequence(start, end+toward, step)
	if err != nil {
		return "", err
	}
	return b.text(strings.Trim(fmt.Sprint(numbers), "[]"))
}

func (b *budget) jsonFunctions() text.FuncMap {
	encode := func(v any) (string, error) { return b.json(v, json.Marshal) }
	pretty := func(v any) (string, error) {
		return b.json(v, func(v any) ([]byte, error) { return json.MarshalIndent(v, "", "  ") })
	}
	raw := func(v any) (string, error) {
		return b.json(v, func(v any) ([]byte, error) {
			var buf bytes.Buffer
			enc := json.NewEncoder(&buf)
			enc.SetEscapeHTML(false)
			err := enc.Encode(v)
			return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), err
		})
	}
	decode := func(s string) (v any, err error) {
		if err := errors.Join(b.scan(s), b.spend(4*slot*len(s))); err != nil {
			return nil, err
		}
		return v, json.Unmarshal([]byte(s), &v)
	}
	return text.FuncMap{
		"toJSON": func(v any) (string, error) {
			if v == nil {
				return "{}", nil
			}
			return encode(v)
		},
		"toJson": encode, "mustToJson": encode, "toPrettyJson": pretty, "mustToPrettyJson": pretty, "toRawJson": raw, "mustToRawJson": raw,
		"mustFromJson": func(s string) (any, error) {
			return decode(s)
		},
		"fromJson": func(s string) (any, error) {
			v, err := decode(s)
			if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
				return nil, nil // like Sprig
			}
			return v, err
		},
	}
}

func (b *budget) json(v any, encode func(any) ([]byte, error)) (string, error) {
	if err := b.weigh(v); err != nil {
		return "", err
	}
	doc, err := encode(v)
	if err != nil {
		return "", err
	}
	return b.text(string(doc))
}

// valueFunctions returns functions for values of any type.
func (b *budget) valueFunctions() text.FuncMap {
	filled := func(v any) bool { return !empty(v) }
	return text.FuncMap{
		"default": func(fallback any, given ...any) any {
			if len(given) == 0 || empty(given[0]) {
				return fallback
			}
			return given[0]
		},
		"empty": empty,
		"coalesce": func(values ...any) any {
			if i := slices.IndexFunc(values, filled); i >= 0 {
				return values[i]
			}
			return nil
		},
		"all": func(values ...any) bool { return !slices.ContainsFunc(values, empty) },
		"any": func(values ...any) bool { return slices.ContainsFunc(values, filled) },
		"ternary": func(yes, no any, condition bool) any {
			if condition {
				return yes
			}
			return no
		},
		"fail": func(message string) (string, error) { return "", errors.New(message) },
		"required": func(message string, v any) (any, error) {
			if s, ok := v.(string); v == nil || ok && s == "" {
				return nil, errors.New(message)
			}
			return v, nil
		},
		"toString": func(v any) (string, error) {
			if err := b.weigh(v); err != nil {
				return "", err
			}
			return b.text(spell(v))
		},
		"toStrings": b.strings,
		"typeOf":    func(v any) string { return fmt.Sprintf("%T", v) },
		"typeIs":    func(name string, v any) bool { return fmt.Sprintf("%T", v) == name },
		"typeIsLike": func(name string, v any) bool {
			return strings.TrimPrefix(fmt.Sprintf("%T", v), "*") == strings.TrimPrefix(name, "*")
		},
		"kindOf":    func(v any) string { return reflect.ValueOf(v).Kind().String() },
		"kindIs":    func(name string, v any) bool { return reflect.ValueOf(v).Kind().String() == name },
		"deepEqual": func(v, w any) (bool, error) { return reflect.DeepEqual(v, w), errors.Join(b.weigh(v), b.weigh(w)) },
	}
}

// empty reports whether a value is the zero value of its type; a struct never is.
func empty(v any) bool {
	switch value := reflect.ValueOf(v); value.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Slice, reflect.Map, reflect.Array, reflect.String:
		return value.Len() == 0
	case reflect.Struct:
		return false
	default:
		return value.IsZero()
	}
}
