// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const virtualServiceOf = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: big}\nspec:\n  hosts: %s\n" +
	"  http: [{route: [{destination: {host: a}}]}]\n"

// TestListedProblems checks that of many mistakes in objects and files, the first ones are listed
// and the others counted.
func TestListedProblems(t *testing.T) {
	t.Parallel()
	equal := fmt.Sprintf(virtualServiceOf, "["+strings.Repeat("catalog.example.com, ", 1500)+"]")
	const ok = "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: ok}\nspec: {address: 10.0.0.1}\n"
	unknown := strings.Builder{}
	for i := range 1000 {
		fmt.Fprintf(&unknown, "  field%d: 1\n", i)
	}
	tests := []struct {
		name, text string
		last       string
	}{
		{"equal hosts", equal, "1479 more errors are not listed: correct the others first"},
		{"documents without kind", strings.Repeat("--- {}\n", 5000), "4980 more problems are not listed: correct the others first"},
		{"unknown fields", fmt.Sprintf(virtualServiceOf, "[a]") + unknown.String(), "980 more errors are not listed: correct the others first"},
		{"one error too many", fmt.Sprintf(virtualServiceOf, "["+strings.Repeat("'', ", 21)+"]"), "21 more errors are not listed: correct the others first"},
		{"duplicate keys", fmt.Sprintf(virtualServiceOf, "[a]") + strings.Repeat("  exportTo: []\n", 100), "79 more problems are not listed: correct the others first"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			objects, problems := Decode("f", []byte(test.text+ok))
			if len(problems) != field.MaxListed+1 {
				t.Errorf("%d problems, want %d", len(problems), field.MaxListed+1)
			}
			if !slices.ContainsFunc(problems, func(p model.Problem) bool { return p.Reason == test.last }) {
				t.Errorf("no problem is %q; the last one is %v", test.last, problems[len(problems)-1])
			}
			if len(objects) != 1 || objects[0].Name != "ok" {
				t.Errorf("%d objects, want only the valid one", len(objects))
			}
		})
	}
}

// TestObjectSize checks that an object larger than the API server accepts is rejected, also if
// aliases make it that large.
func TestObjectSize(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 100_000)
	for name, text := range map[string]string{
		"text":    "metadata: {name: big, annotations: {a: " + strings.Repeat("x", MaxObjectSize) + "}}",
		"aliases": "metadata: {name: big, annotations: {a: &a " + big + aliases(15) + ", c: " + strings.Repeat("x", MaxObjectSize/2+MaxObjectSize/4) + "}}",
	} {
		_, problems := Decode("f", []byte("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nspec: {address: 10.0.0.1}\n"+text+"\n---\n"))
		const want = "f:1: WorkloadEntry/default/big: the object contains more than 4 MiB of text, the limit for one object: split it into several objects"
		if len(problems) != 1 || problems[0].String() != want {
			t.Errorf("%s: %d problems, want only one about the size: %.300v", name, len(problems), problems)
		}
	}
}

// TestAliasedText checks that aliases that repeat a long text in many small objects are rejected.
func TestAliasedText(t *testing.T) {
	t.Parallel()
	text := "kind: List\nitems:\n- {metadata: {annotations: {a: &a " + strings.Repeat("x", 100_000) + "}}}\n" +
		strings.Repeat("- {kind: WorkloadEntry, metadata: {annotations: {a: *a}}}\n", 1000)
	objects, problems := Decode("f", []byte(text))
	if len(objects) != 0 || len(problems) != 1 || !strings.Contains(problems[0].String(), "f:24: the aliases of this document expand to more than 2 MiB") {
		t.Errorf("%d objects, %d problems; want only one problem, about the aliases: %.300v", len(objects), len(problems), problems)
	}
}

func aliases(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, ", b%d: *a", i)
	}
	return b.String()
}

// TestDecodeEnds checks that decoding stops when its context is canceled.
func TestDecodeEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("canceled by the test")
	cancel(gone)
	objects, _, err := DecodeContext(ctx, "f", []byte(fmt.Sprintf(virtualServiceOf, "[a]")))
	if len(objects) > 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d objects, error %v; want none and context.Canceled", len(objects), err)
	}
}

// TestProblemsOfFile checks that at least one problem of each invalid object of a file is listed.
func TestProblemsOfFile(t *testing.T) {
	t.Parallel()
	const n = 1500
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, virtualServiceOf+"  x: 1\n  y: 1\n---\n", "['', '']")
		text.WriteString(fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: w%d}\nspec: {address: bad address}\n---\n", i))
	}
	_, problems := Decode("f", []byte(text.String()))
	bad := map[model.Key]int{}
	for _, p := range problems {
		bad[p.Object]++
	}
	last := problems[len(problems)-1]
	if len(bad) != n+2 || len(problems) > maxOfFile+n+2 || last.Unlisted == 0 || last.Warning || last.Object.Name != "" {
		t.Errorf("%d problems of %d objects, the last one is %+v", len(problems), len(bad), last)
	}
}

// TestItemsOfFile checks that a list and a document with too many items are rejected.
func TestItemsOfFile(t *testing.T) {
	t.Parallel()
	item := "{}, "
	for name, text := range map[string]string{
		"f:1: the lists of the file have 10001 items up to here": "{kind: List, items: [" + strings.Repeat(item, MaxDocuments+1) + "]}",
		"f:1: the document has more than 1000000 items":          "[" + strings.Repeat("[],", maxMarks) + "]",
	} {
		if _, problems := Decode("f", []byte(text)); len(problems) != 1 || !strings.HasPrefix(problems[0].String(), name) {
			t.Errorf("want one problem that starts with %q; got %d: %.300v", name, len(problems), problems)
		}
	}
}
