// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestDecodeGolden decodes testdata/*.yaml and compares the objects and
// problems, as a person reads them, with the .want file beside it.
func TestDecodeGolden(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("golden files: %v, %v", paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			objects, problems := Decode(filepath.Base(path), data)
			var b strings.Builder
			for _, c := range objects {
				fmt.Fprintf(&b, "%s: %s\n", c.Source, c.Key)
			}
			for _, p := range problems {
				fmt.Fprintln(&b, p)
			}
			want := strings.TrimSuffix(path, ".yaml") + ".want"
			if *update {
				if err := os.WriteFile(want, []byte(b.String()), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			golden, err := os.ReadFile(want)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(golden), b.String()); diff != "" {
				t.Errorf("decoding gave something else (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDecodeReadsJSON holds the decoder to the JSON of protobuf: what
// protojson writes, it reads as the same message.
func TestDecodeReadsJSON(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, _ := Decode("good.yaml", data)
	if len(objects) != 6 {
		t.Fatalf("good.yaml gave %d objects", len(objects))
	}
	for _, c := range objects {
		for _, o := range []protojson.MarshalOptions{{}, {UseProtoNames: true, Multiline: true}, {UseEnumNumbers: true}} {
			raw, err := o.Marshal(c.Spec)
			if err != nil {
				t.Fatal(err)
			}
			docs, faults := chunk{text: raw}.parse()
			if len(docs) != 1 || len(faults) > 0 {
				t.Fatalf("%s: %v", raw, faults)
			}
			got := c.Spec.ProtoReflect().New()
			b := &builder{}
			b.message(docs[0], got, "spec")
			if len(b.faults) > 0 || !proto.Equal(got.Interface(), c.Spec) {
				t.Errorf("%s is read differently: %v\n%s", c.Key, b.faults, raw)
			}
		}
	}
}
