// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package revisions

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// parsed returns a mesh config.
func parsed(t *testing.T, text string) *meshv1alpha1.MeshConfig {
	t.Helper()
	mesh, err := meshconfig.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return mesh
}

// TestMesh checks that versions of the mesh config and of the networks are recorded beside those of
// objects, without secrets, also by a log that did not record them before.
func TestMesh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0)
		before := r.change("a", "one")
		r.stop()
		now := MeshSettings{MeshSource: "ConfigMap mesh/istio"}
		set := func(text string) time.Time {
			now.Mesh = parsed(t, text)
			r.log.Note(model.Change{All: true}, time.Now())
			return r.sleep(time.Minute)
		}
		now.Mesh = parsed(t, "{}")
		r.source = WithMesh(Objects(r.store), func() MeshSettings { return now })
		r.start(0)
		defer r.stop()
		const provider = "accessLogFile: /dev/stdout\nextensionProviders: [{name: spans, opentelemetry: {service: a.example.com, port: 80, http: {path: /v1, headers: [{name: x-team, value: %s}]}}}]\n"
		first := set("{}")
		second := set(fmt.Sprintf(provider, "s3cr3t"))
		set(fmt.Sprintf(provider, "an0ther"))
		now.Networks = &meshv1alpha1.MeshNetworks{Networks: map[string]*meshv1alpha1.Network{"far": {}}}
		set(fmt.Sprintf(provider, "an0ther"))
		now.Networks = nil
		last := set("{}")
		r.change("a", "two")
		expect(t, "List()", r.lines(Filter{}), []string{
			"a created", "mesh found unseen", "mesh updated", "meshNetworks created", "mesh updated", "meshNetworks deleted", "a updated",
		})
		h, err := r.log.List(Filter{Kind: model.MeshConfigKind, Name: report.MeshName})
		if err != nil || len(h.Versions) != 3 || h.Versions[0].Revision != h.Versions[2].Revision || h.Versions[0].Source != now.MeshSource {
			t.Errorf("List(mesh) = %+v, %v, want three versions, the first and the last with one revision", h, err)
		}
		changes, err := r.log.Changes(first, second)
		if err != nil || len(changes) != 1 || strings.Contains(string(changes[0].After.Object), "s3cr3t") {
			t.Fatalf("Changes = %+v, %v, want one without the value of a header", changes, err)
		}
		was, err := Mesh(*changes[0].Before)
		if want := parsed(t, "{}"); err != nil || !proto.Equal(was, want) {
			t.Errorf("Mesh() before = %v, %v, want %v", was, err, want)
		}
		is, err := Mesh(*changes[0].After)
		if want := parsed(t, fmt.Sprintf(provider, `"[redacted]"`)); err != nil || !proto.Equal(is, want) {
			t.Errorf("Mesh() after = %v, %v, want %v", is, err, want)
		}
		if changes, err = r.log.Changes(second, last); err != nil || len(changes) != 1 || changes[0].Name != report.MeshName {
			t.Errorf("Changes = %+v, %v, want those of the mesh config", changes, err)
		}
		if changes, err = r.log.Changes(before, first); err != nil || len(changes) != 1 || changes[0].Before != nil {
			t.Errorf("Changes = %+v, %v, want a mesh config that was not known before", changes, err)
		}
	})
}

// fill sets all fields of a message, of each oneof the last one, to a depth.
func fill(m protoreflect.Message, depth int) {
	value := func(f protoreflect.FieldDescriptor, of func() protoreflect.Value) protoreflect.Value {
		switch {
		case f.Message() != nil:
			v := of()
			if name := f.Message().FullName(); name.Parent() != "google.protobuf" && depth > 0 {
				fill(v.Message(), depth-1)
			}
			return v
		case f.Kind() == protoreflect.StringKind:
			return protoreflect.ValueOfString("s3cr3t")
		case f.Kind() == protoreflect.EnumKind:
			values := f.Enum().Values()
			return protoreflect.ValueOfEnum(values.Get(values.Len() - 1).Number())
		}
		return of()
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.IsMap():
			of := m.Mutable(f).Map()
			of.Set(protoreflect.ValueOfString("token").MapKey(), value(f.MapValue(), of.NewValue))
		case f.IsList():
			of := m.Mutable(f).List()
			of.Append(value(f, of.NewElement))
		default:
			m.Set(f, value(f, func() protoreflect.Value { return m.NewField(f) }))
		}
	}
}

// TestMeshFields checks that each field of the mesh config can be read from a version, and that those
// with secrets have none.
func TestMeshFields(t *testing.T) {
	t.Parallel()
	for name, field := range map[string]string{
		"header":            "opentelemetry: {service: a, port: 1, http: {path: /, headers: [{name: x-team, value: s3cr3t}]}}",
		"metadata":          "envoyOtelAls: {service: a, port: 1, grpc: {initialMetadata: [{name: x-team, value: s3cr3t}]}}",
		"token":             "skywalking: {service: a, port: 1, accessToken: s3cr3t}",
		"lightstep":         "lightstep: {service: a, port: 1, accessToken: s3cr3t}",
		"additional header": "envoyExtAuthzHttp: {service: a, port: 1, includeAdditionalHeadersInCheck: {x-team: s3cr3t}}",
	} {
		text := "extensionProviders: [{name: a, " + field + "}]\ndefaultConfig: {proxyMetadata: {API_KEY: s3cr3t}}\n"
		mesh := parsed(t, text)
		if !strings.Contains(mesh.String(), "s3cr3t") {
			t.Fatalf("%s: the mesh config %v lacks the secret", name, mesh)
		}
		if out, err := encodeMesh(mesh); err != nil || strings.Contains(string(out), "s3cr3t") {
			t.Errorf("%s: got %s, %v, want no secret", name, out, err)
		}
	}
	full := &meshv1alpha1.MeshConfig{}
	fill(full.ProtoReflect(), 6)
	out, err := encodeMesh(full)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Mesh(report.Version{Object: out}); err != nil {
		t.Errorf("a mesh config with all fields cannot be read: %v", err)
	}
}
