// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshsettings

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
)

func TestWithoutEffect(t *testing.T) {
	t.Parallel()
	if names := withoutEffect(meshconfig.Default()); names != nil {
		t.Errorf("withoutEffect() of the defaults = %v, want none", names)
	}
	mesh, err := meshconfig.Parse([]byte("accessLogFile: /dev/stdout\noutboundTrafficPolicy: {mode: REGISTRY_ONLY}\ninboundTrafficPolicy: {mode: LOCALHOST}\nenablePrometheusMerge: false\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(withoutEffect(mesh)); got != "[inboundTrafficPolicy]" {
		t.Errorf("withoutEffect() = %s, want [inboundTrafficPolicy]", got)
	}
	for text, want := range map[string]string{
		"{name: a, envoyExtAuthzHttp: {service: a.example.com, port: 80}}": "[]",
		"{name: a, zipkin: {service: a.example.com, port: 80}}":            "[]",
		"{name: a, stackdriver: {}}":                                       "[extensionProviders]",
	} {
		mesh, err := meshconfig.Parse([]byte("extensionProviders: [" + text + "]"))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(withoutEffect(mesh)); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
	fields := (&meshv1alpha1.MeshConfig{}).ProtoReflect().Descriptor().Fields()
	for _, name := range servedFields {
		if fields.ByJSONName(name) == nil {
			t.Errorf("MeshConfig has no field %s", name)
		}
	}
	if !slices.IsSorted(servedFields) {
		t.Error("the fields are not sorted")
	}
}

// TestServedFieldsAreRead checks that the list of fields with an effect matches the code: a field
// is in the list exactly if the code reads it.
func TestServedFieldsAreRead(t *testing.T) {
	t.Parallel()
	reads := map[string]bool{}
	// Injection passes this mode to agents and templates, but it has no effect on where proxies
	// connect to.
	const passedOn = "inboundTrafficPolicy"
	getter := regexp.MustCompile(`(?i:mesh|config)(?:\(\))?\.Get([A-Z][A-Za-z0-9]*)\(\)`)
	for _, root := range []string{".."} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, found := range getter.FindAllSubmatch(text, -1) {
				reads[strings.ToLower(string(found[1]))] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	fields := (&meshv1alpha1.MeshConfig{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name := fields.Get(i).JSONName()
		if name == passedOn && !slices.Contains(servedFields, name) {
			continue
		}
		if served := slices.Contains(servedFields, name); served != reads[strings.ToLower(name)] {
			t.Errorf("%s: in the list of fields with an effect: %v, read by the code: %v", name, served, !served)
		}
	}
}

func TestPin(t *testing.T) {
	t.Parallel()
	before, err := meshconfig.Parse([]byte("trustDomain: a.test\nconfigSources: [{address: 'fs:///a'}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	next, err := meshconfig.Parse([]byte("trustDomain: b.test\nrootNamespace: other\n"))
	if err != nil {
		t.Fatal(err)
	}
	got, differ := Pin(next, before)
	if fmt.Sprint(differ) != "[configSources trustDomain]" || got.GetTrustDomain() != "a.test" || len(got.GetConfigSources()) != 1 || got.GetRootNamespace() != "other" || next.GetTrustDomain() != "b.test" {
		t.Errorf("Pin() = %v, differing fields %v", got, differ)
	}
	if got, differ := Pin(before, next); len(got.GetConfigSources()) != 0 || len(differ) != 2 {
		t.Errorf("Pin() with the arguments swapped = %v, differing fields %v", got, differ)
	}
	if _, differ := Pin(next, next); differ != nil {
		t.Errorf("Pin() of equal settings: differing fields %v, want none", differ)
	}
}
