// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate_test

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Each file of testdata contains one object. Those in good are valid. Those in bad violate a rule;
// their comments contain the messages that a user gets. The tests of e2e/kube send the same files
// to a real API server; the comments "# api server: accepts" and "# channel: experimental" are for
// them.

const (
	errorComment   = "# error: "
	warningComment = "# warning: "
)

// TestValidation validates every file.
func TestValidation(t *testing.T) {
	t.Parallel()
	for _, path := range validationFiles(t, "good", "bad") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		objects, problems := codec.Decode("", data)
		var got, want, rest []string
		for _, p := range problems {
			switch {
			case !p.Warning:
				got = append(got, errorComment+p.Reason)
			case !strings.HasSuffix(p.Reason, "no effect in this version"):
				got = append(got, warningComment+p.Reason)
			}
		}
		for line := range strings.Lines(string(data)) {
			line = strings.TrimSuffix(line, "\n")
			if strings.HasPrefix(line, errorComment) || strings.HasPrefix(line, warningComment) {
				want = append(want, line)
			} else {
				rest = append(rest, line)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		switch bad := filepath.Base(filepath.Dir(path)) == "bad"; {
		case bad == (len(objects) == 1):
			t.Errorf("%s: Decode returned %d objects", path, len(objects))
		case *update:
			if err := os.WriteFile(path, []byte(strings.Join(append(got, rest...), "\n")+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		default:
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
		}
		for _, o := range objects {
			if errs, _ := validate.Object(o); len(errs) > 0 {
				t.Errorf("%s: config.Validate rejects an object that config.Decode accepts: %v", path, errs)
			}
		}
	}
}

// TestEveryFieldIsRead checks that the valid files of these kinds together set every field.
func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	set := map[string]bool{}
	for _, path := range validationFiles(t, "good") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		objects, _ := codec.Decode("", data)
		for _, o := range objects {
			if m, ok := o.Spec.(proto.Message); ok {
				messageFields(m.ProtoReflect(), set)
			} else {
				givenFields(reflect.ValueOf(o.Spec), set)
			}
		}
	}
	for _, kind := range []model.Kind{
		model.AuthorizationPolicy, model.PeerAuthentication, model.RequestAuthentication, model.EnvoyFilter, model.Telemetry,
		model.WasmPlugin, model.TrafficExtension, model.ProxyConfig, model.BackendTLSPolicy, model.GatewayClass, model.GRPCRoute, model.HTTPRoute,
		model.KubernetesGateway, model.ListenerSet, model.ReferenceGrant, model.TCPRoute, model.TLSRoute, model.UDPRoute, model.Ingress, model.IngressClass,
	} {
		sch, ok := schema.Of(kind)
		if !ok {
			t.Fatalf("kind %s is unknown", kind)
		}
		var all []string
		if m, ok := sch.NewSpec().(proto.Message); ok {
			allMessageFields(m.ProtoReflect().Descriptor(), map[protoreflect.FullName]bool{}, &all)
		} else {
			allStructFields(reflect.TypeOf(sch.NewSpec()).Elem(), map[reflect.Type]bool{}, &all)
		}
		for _, name := range all {
			// This field exists only to be rejected: see targetRef.
			if !set[name] && name != "istio.type.v1beta1.PolicyTargetReference.namespace" {
				t.Errorf("%s: no valid file sets %s", kind, name)
			}
		}
	}
}

func messageFields(m protoreflect.Message, set map[string]bool) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		set[string(fd.FullName())] = true
		switch {
		case fd.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				if fd.MapValue().Message() != nil {
					messageFields(v.Message(), set)
				}
				return true
			})
		case fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				messageFields(v.List().Get(i).Message(), set)
			}
		default:
			messageFields(v.Message(), set)
		}
		return true
	})
}

func allMessageFields(md protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool, all *[]string) {
	if seen[md.FullName()] || strings.HasPrefix(string(md.FullName()), "google.protobuf.") {
		return
	}
	seen[md.FullName()] = true
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		*all = append(*all, string(fd.FullName()))
		if fd.IsMap() {
			fd = fd.MapValue()
		}
		if fd.Message() != nil {
			allMessageFields(fd.Message(), seen, all)
		}
	}
}

func givenFields(v reflect.Value, set map[string]bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			givenFields(v.Elem(), set)
		}
	case reflect.Slice:
		for i := range v.Len() {
			givenFields(v.Index(i), set)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && !v.Field(i).IsZero() {
				set[v.Type().PkgPath()+"."+v.Type().Name()+"."+v.Type().Field(i).Name] = true
				givenFields(v.Field(i), set)
			}
		}
	}
}

func allStructFields(t reflect.Type, seen map[reflect.Type]bool, all *[]string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || seen[t] {
		return
	}
	seen[t] = true
	for _, f := range schema.StructFields(t) {
		*all = append(*all, f.Owner.PkgPath()+"."+f.Owner.Name()+"."+f.Name)
		allStructFields(f.Type, seen, all)
	}
}

// TestFaultLines checks that faults of every category refer to the line of the field.
func TestFaultLines(t *testing.T) {
	t.Parallel()
	const text = `apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: a}
spec:
  rules:
  - matches:
    - path:
        type: Exact
        value: a
    backendRefs:
    - name: catalog
      port: 0
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: a}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    patch:
      operation: ADD
      value:
        name: a
        typed_config:
          "@type": type.googleapis.com/no.such.Type
`
	_, problems := codec.Decode("f", []byte(text))
	var got []string
	for _, p := range problems {
		if !p.Warning {
			got = append(got, p.Source)
		}
	}
	if diff := cmp.Diff([]string{"f:9", "f:12", "f:25"}, got); diff != "" {
		t.Errorf("%v (-want +got):\n%s", problems, diff)
	}
}

// TestEmptyItems checks that validating objects built by a program, with nil items in their lists,
// does not panic.
func TestEmptyItems(t *testing.T) {
	t.Parallel()
	for _, s := range schema.All() {
		m, ok := s.NewSpec().(proto.Message)
		if !ok {
			continue
		}
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if fd := fields.Get(i); fd.IsList() && fd.Message() != nil {
				list := reflect.ValueOf(m).Elem().FieldByName(goName(fd))
				list.Set(reflect.MakeSlice(list.Type(), 1, 1))
			}
		}
		validate.Object(&model.Config{Key: model.Key{Kind: s.Kind, Namespace: "a", Name: "b"}, Spec: m})
	}
}

// goName returns the name of a field in the Go struct of its message.
func goName(fd protoreflect.FieldDescriptor) string {
	name := ""
	for part := range strings.SplitSeq(string(fd.Name()), "_") {
		name += strings.ToUpper(part[:1]) + part[1:]
	}
	return name
}
