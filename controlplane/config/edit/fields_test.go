// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package edit

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const routeText = `# The canary of the catalog.
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
    name: a   # short
    labels: {team: "web", tier: one} # of the team
spec:
    hosts: [catalog]

    http:
    # most of the traffic
    - route:
      - destination: {host: catalog, subset: v1}
        weight: 90 # raise it slowly
      - destination:
          host: catalog
          subset: 'v2'
        weight: 10
      timeout: 1m
      # why
      retries:
        attempts: 3

# behind
`

// routeCode is routeText as EncodeYAML writes it.
const routeCode = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  labels:
    team: web
    tier: one
  name: a
  namespace: default
spec:
  hosts:
  - catalog
  http:
  - retries:
      attempts: 3
    route:
    - destination:
        host: catalog
        subset: v1
      weight: 90
    - destination:
        host: catalog
        subset: v2
      weight: 10
    timeout: 60s
`

// TestFields changes fields of a text and compares all of its lines.
func TestFields(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		// code are the replacements that produce the desired object, text are those expected in the
		// text.
		code, text []string
	}{
		{"two weights", []string{"weight: 90", "weight: 50", "weight: 10", "weight: 50"}, []string{"weight: 90", "weight: 50", "weight: 10", "weight: 50"}},
		{"text in quotes", []string{"subset: v2", "subset: v3", "team: web", "team: shop"}, []string{"subset: 'v2'", "subset: 'v3'", `team: "web"`, `team: "shop"`}},
		{"in brackets", []string{"subset: v1", "subset: v0"}, []string{"subset: v1", "subset: v0"}},
		{"another spelling", []string{"60s", "30s"}, []string{"1m", "30s"}},
		{"an entry more", []string{"attempts: 3\n", "attempts: 3\n      perTryTimeout: 1s\n"}, []string{"attempts: 3\n", "attempts: 3\n        perTryTimeout: 1s\n"}},
		{"an entry more in brackets", []string{"  - catalog\n", "  - catalog\n  - books\n"}, []string{"[catalog]", "[catalog, books]"}},
		{"an entry less", []string{"    timeout: 60s\n", ""}, []string{"      timeout: 1m\n", ""}},
		{"an entry less in brackets", []string{"    tier: one\n", ""}, []string{`{team: "web", tier: one}`, "{team: web}"}},
		{"a block more", []string{"    timeout: 60s\n", "    timeout: 60s\n    fault:\n      abort:\n        httpStatus: 500\n"}, []string{"attempts: 3\n", "attempts: 3\n      fault:\n        abort:\n          httpStatus: 500\n"}},
		{"a block less", []string{"  - retries:\n      attempts: 3\n    route:", "  - route:"}, []string{"      retries:\n        attempts: 3\n", ""}},
		{
			"an item less",
			[]string{"    - destination:\n        host: catalog\n        subset: v2\n      weight: 10\n", "", "weight: 90", "weight: 100"},
			[]string{"      - destination:\n          host: catalog\n          subset: 'v2'\n        weight: 10\n", "", "weight: 90", "weight: 100"},
		},
		{
			"an item more",
			[]string{"      weight: 10\n", "      weight: 5\n    - destination:\n        host: old\n      weight: 5\n"},
			[]string{"        weight: 10\n", "        weight: 5\n      - destination:\n          host: old\n        weight: 5\n"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			key := model.Key{Kind: model.VirtualService, Namespace: "default", Name: "a"}
			now, want := strings.NewReplacer(test.code...).Replace(routeCode), strings.NewReplacer(test.text...).Replace(routeText)
			for _, around := range [][2]string{{"", ""}, {"kind: [\n---\n", "---\n" + docB}} {
				got, err := Fields([]byte(around[0]+routeText+around[1]), key, []byte(routeCode), []byte(now))
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(around[0]+want+around[1], string(got)); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			}
		})
	}
}

// TestFieldsOfItems changes an item of a list, also in a text with CRLF line endings.
func TestFieldsOfItems(t *testing.T) {
	t.Parallel()
	const text = "kind: List\nitems:\n# first\n- " + "apiVersion: networking.istio.io/v1\n  kind: WorkloadEntry\n  metadata: {name: a}\n  spec: {address: 10.0.0.1} # near\n- {kind: WorkloadEntry, apiVersion: networking.istio.io/v1, metadata: {name: b}, spec: {address: 10.0.0.2}}\n"
	code := func(name, address string) []byte {
		return []byte("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata:\n  name: " + name + "\nspec:\n  address: " + address + "\n")
	}
	for name, address := range map[string]string{"a": "10.0.0.1", "b": "10.0.0.2"} {
		for _, text := range []string{text, strings.ReplaceAll(text, "\n", "\r\n")} {
			got, err := Fields([]byte(text), model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: name}, code(name, address), code(name, "10.0.0.9"))
			if want := strings.Replace(text, address, "10.0.0.9", 1); err != nil || string(got) != want {
				t.Errorf("%s: error %v\n%s\nwant:\n%s", name, err, got, want)
			}
		}
	}
}

// TestFieldsRefuse checks that values that are also used elsewhere are not changed in place.
func TestFieldsRefuse(t *testing.T) {
	t.Parallel()
	const text = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: b, labels: {a: &x 10.0.0.1}}\nspec: {address: *x}\n"
	code := func(address string) []byte {
		return []byte("metadata:\n  labels:\n    a: 10.0.0.1\n  name: b\nspec:\n  address: " + address + "\n")
	}
	if got, err := Fields([]byte(text), model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "b"}, code("10.0.0.1"), code("10.0.0.2")); err == nil {
		t.Errorf("Fields changed the text to\n%s", got)
	}
}
