// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package edit

import (
	"errors"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	docA = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata:\n  name: a\nspec:\n  address: 10.0.0.1\n"
	docB = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: b} # of b\nspec: {address: 10.0.0.2}\n"
	docC = "kind: WorkloadEntry\napiVersion: networking.istio.io/v1beta1\nmetadata: {name: c, namespace: default}\nspec: {address: 10.0.0.3}\n"
	docX = "NEW\n"
)

func TestEditObject(t *testing.T) {
	t.Parallel()
	list := "# list\napiVersion: v1\nkind: List\nitems:\n# first\n- apiVersion: networking.istio.io/v1\n  kind: WorkloadEntry\n" +
		"  metadata: {name: a}\n  spec: {address: 10.0.0.1} # near\n- apiVersion: networking.istio.io/v1\n  kind: WorkloadEntry\n" +
		"  metadata: {name: b}\n  spec: {address: 10.0.0.2}\n# end\n"
	for _, c := range []struct{ name, text, key, replaced, removed string }{
		{"alone", docB, "b", docX, ""},
		{"head", "# licence\n\n" + docB, "b", "# licence\n\n" + docX, ""},
		{"middle", docA + "---\n# b\n" + docB + "--- # c\n" + docC, "b", docA + "---\n# b\n" + docX + "--- # c\n" + docC, docA + "--- # c\n" + docC},
		{"first", docA + "---\n" + docB, "a", docX + "---\n" + docB, "---\n" + docB},
		{"last without newline", docA + "---\n" + strings.TrimSpace(docB), "b", docA + "---\n" + docX, docA},
		{"tail", docB + "# on the next\n---\n" + docC, "b", docX + "# on the next\n---\n" + docC, "# on the next\n---\n" + docC},
		{"tail after a marker", "---\n" + docB + "# on the next\n---\n" + docC, "b", "---\n" + docX + "# on the next\n---\n" + docC, "---\n# on the next\n---\n" + docC},
		{"on the line of the marker", docA + "--- {kind: WorkloadEntry, apiVersion: networking.istio.io/v1, metadata: {name: b}, spec: {address: 10.0.0.1}}\n", "b", docA + "---\n" + docX, docA},
		{"broken neighbour", "kind: [\n---\n" + docB + "---\n\t- x\n", "b", "kind: [\n---\n" + docX + "---\n\t- x\n", "kind: [\n---\n\t- x\n"},
		{"broken spec", docA + "---\nspec: {address: 7, x: y}\n" + strings.ReplaceAll(docB, "spec: {address: 10.0.0.2}\n", ""), "b", docA + "---\n" + docX, docA},
		{"another key first", strings.ReplaceAll(docB, "name: b", "name: b, namespace: other") + "---\n" + docB, "b", strings.ReplaceAll(docB, "name: b", "name: b, namespace: other") + "---\n" + docX, strings.ReplaceAll(docB, "name: b", "name: b, namespace: other")},
		{
			"list", docC + "---\n" + list, "b",
			docC + "---\n" + strings.Replace(list, "- apiVersion: networking.istio.io/v1\n  kind: WorkloadEntry\n  metadata: {name: b}\n  spec: {address: 10.0.0.2}\n", "- NEW\n", 1),
			docC + "---\n" + strings.Replace(list, "- apiVersion: networking.istio.io/v1\n  kind: WorkloadEntry\n  metadata: {name: b}\n  spec: {address: 10.0.0.2}\n", "", 1),
		},
		{
			"list in brackets", "kind: List\nitems: [{kind: WorkloadEntry, apiVersion: networking.istio.io/v1, metadata: {name: b}}, {kind: WorkloadEntry}]\n", "b",
			"kind: List\nitems: [NEW, {kind: WorkloadEntry}]\n", "kind: List\nitems: [{kind: WorkloadEntry}]\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			key := model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: c.key}
			for doc, want := range map[string]string{docX: c.replaced, "": c.removed} {
				var text []byte
				if doc != "" {
					text = []byte(doc)
				}
				got, err := Object([]byte(c.text), key, text)
				if err != nil || string(got) != want {
					t.Errorf("replaced by %q:\n%s%v\nwant:\n%s", doc, got, err, want)
				}
			}
			key.Name = "none"
			if _, err := Object([]byte(c.text), key, nil); !errors.Is(err, errNotFound) {
				t.Errorf("Object() for a missing object = %v, want errNotFound", err)
			}
		})
	}
	if _, err := Object([]byte(docA+"...\n"+docB), model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "b"}, nil); err == nil {
		t.Error("a document that cannot be separated from the next one was removed")
	}
}
