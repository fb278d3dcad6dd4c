// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// samples has fields of every form that occurs in Kubernetes' structs.
type samples struct {
	Inlined  `json:",inline"`
	Text     named                `json:"text,omitempty"`
	Pointer  *named               `json:"pointer,omitempty"`
	Small    int8                 `json:"small,omitempty"`
	Unsigned *uint16              `json:"unsigned,omitempty"`
	Big      int64                `json:"big,omitempty"`
	Real     *float64             `json:"real,omitempty"`
	Flag     *bool                `json:"flag,omitempty"`
	Bytes    []byte               `json:"bytes,omitempty"`
	List     []named              `json:"list,omitempty"`
	Objects  []*Inlined           `json:"objects,omitempty"`
	Free     map[named]named      `json:"free,omitempty"`
	Nested   map[string][]int     `json:"nested,omitempty"`
	Any      any                  `json:"any,omitempty"`
	Port     intstr.IntOrString   `json:"port,omitempty"`
	Ports    []intstr.IntOrString `json:"ports,omitempty"`
	Wait     metav1.Duration      `json:"wait,omitempty"`
	When     *metav1.Time         `json:"when,omitempty"`
	Hidden   string               `json:"-"`
}

type named string

// Inlined is embedded in samples.
type Inlined struct {
	Inner string `json:"inner,omitempty"`
}

func structureOf(text string, into any) []string {
	docs, faults := Document{Text: []byte(text)}.parse(&parseWork{})
	b := &builder{faults: faults}
	for _, doc := range docs {
		b.structure(doc, into, "spec")
	}
	var texts []string
	for _, f := range b.faults {
		texts = append(texts, fmt.Sprintf("%d: %s", f.line, f.text))
	}
	return texts
}

func TestStructure(t *testing.T) {
	t.Parallel()
	const text = `
inner: a
text: 2030-01-01
pointer: "5"
small: -128
unsigned: 65535
big: 9007199254740993
real: 0.5
flag: true
bytes: aGk=
list: [x, y]
objects: [{inner: b}]
free: {k: v}
nested: {a: [1, 0x10]}
any: {a: [1, x, null, 1.5, true]}
port: 80
ports: [http, 81]
wait: 5s
when: 2030-01-31T12:00:00Z
`
	var got samples
	if faults := structureOf(text, &got); len(faults) > 0 {
		t.Fatal(faults)
	}
	raw, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"inner":"a","text":"2030-01-01","pointer":"5","small":-128,"unsigned":65535,"big":9007199254740993,"real":0.5,"flag":true,` +
		`"bytes":"aGk=","list":["x","y"],"objects":[{"inner":"b"}],"free":{"k":"v"},"nested":{"a":[1,16]},"any":{"a":[1,"x",null,1.5,true]},` +
		`"port":80,"ports":["http",81],"wait":"5s","when":"2030-01-31T12:00:00Z"}`
	if string(raw) != want {
		t.Errorf("got  %s\nwant %s", raw, want)
	}
}

func TestStructureFaults(t *testing.T) {
	t.Parallel()
	const known = ": it knows inner, text, pointer, small, unsigned, big, real, flag, bytes, list, objects, free, nested, any, port, ports, wait, when"
	for text, want := range map[string][]string{
		"[a]":                             {`1: spec is a list: it must be a mapping`},
		"Inner: a\nhidden: b":             {`1: unknown field "Inner" in spec: did you mean "inner"?`, `2: unknown field "hidden" in spec` + known},
		"objects:\n- inner: a\n  iner: b": {`3: unknown field "iner" in spec.objects[0]: did you mean "inner"?`},
		"text: 5\nflag: yes":              {`1: spec.text is the number 5: it must be text; put it in quotes: "5"`, `2: spec.flag is the text "yes": it must be true or false`},
		"small: 128\nunsigned: -1":        {`1: spec.small is 128: it must be between -128 and 127`, `2: spec.unsigned is -1: it must be between 0 and 65535`},
		"small: \"8\"":                    {`1: spec.small is the text "8": it must be a whole number; write 8 without quotes`},
		"small: 1.5\nreal: .nan":          {`1: spec.small is the number 1.5: it must be a whole number`, `2: spec.real is the number .nan: it must be a number`},
		"bytes: \"!\"":                    {`1: spec.bytes is the text "!": it must be bytes in base64`},
		"list: a\nobjects: {}":            {`1: spec.list is the text "a": it must be a list (each item begins with "- ")`, `2: spec.objects is a mapping: it must be a list (each item begins with "- ")`},
		"list:\n- a\n-":                   {`3: spec.list[1] is empty: write it or remove the "-"`},
		"free: [a]\nnested: {a: }":        {`1: spec.free is a list: it must be a mapping`, `2: spec.nested[a] is empty: write a value, or "" for an empty text`},
		"port: {}\nany: .inf":             {`1: spec.port is a mapping: it must be text`, `2: spec.any is the number .inf: it must be a finite number, or text in quotes`},
		"port: 3000000000":                {`1: spec.port is 3000000000: it must be between -2147483648 and 2147483647`},
		"wait: soon":                      {`1: spec.wait is the text "soon": time: invalid duration "soon"`},
	} {
		if diff := cmp.Diff(want, structureOf(text, &samples{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	// Fields that the definitions of the Gateway API require must be present.
	want := []string{"1: spec.group is missing: write an API group such as gateway.networking.k8s.io, or \"\" for that of Service"}
	if diff := cmp.Diff(want, structureOf("{kind: Service, name: a}", &gatewayv1.LocalObjectReference{})); diff != "" {
		t.Error(diff)
	}
}

// FuzzStructure checks that reading any YAML into any struct neither panics nor silently loses
// anything: what was read is written back the same.
func FuzzStructure(f *testing.F) {
	paths, err := os.ReadDir("../validate/testdata/good")
	if err != nil {
		f.Fatal(err)
	}
	for _, p := range paths {
		data, err := os.ReadFile("../validate/testdata/good/" + p.Name())
		if err != nil {
			f.Fatal(err)
		}
		if _, spec, ok := strings.Cut(string(data), "\nspec:\n"); ok {
			f.Add([]byte(spec))
		}
	}
	f.Add([]byte("inner: a\nany: {a: [1, x, null]}\nport: 80\nwait: 5s\nwhen: 2030-01-31T12:00:00Z\nbytes: aGk="))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, empty := range append(specsOfStructs(), &samples{}) {
			first := reflect.New(reflect.TypeOf(empty).Elem()).Interface()
			if len(structureOf(string(data), first)) > 0 {
				continue
			}
			raw, err := json.Marshal(first)
			if err != nil {
				t.Fatalf("%T cannot be written: %v", first, err)
			}
			second := reflect.New(reflect.TypeOf(empty).Elem()).Interface()
			if faults := structureOf(string(raw), second); len(faults) > 0 && !leftOut(faults) {
				t.Fatalf("%T, written as %s: %v", first, raw, faults)
			}
		}
	})
}

// leftOut reports whether all faults are about fields that JSON omits when they are empty.
func leftOut(faults []string) bool {
	return !slices.ContainsFunc(faults, func(s string) bool { return !strings.Contains(s, " is missing") })
}

func specsOfStructs() (list []any) {
	for _, s := range schema.All() {
		if spec := s.NewSpec(); reflect.TypeOf(spec).Elem().PkgPath() == "sigs.k8s.io/gateway-api/apis/v1" || strings.HasPrefix(s.Group, "networking.k8s.io") {
			list = append(list, spec)
		}
	}
	return list
}
