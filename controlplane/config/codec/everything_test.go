// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"slices"
	"strings"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// refusedPaths are fields that no valid object may have.
var refusedPaths = map[string]string{
	"spec.http.fault.delay.exponentialDelay":             "not supported by any proxy",
	"spec.http.fault.abort.http2Error":                   "not supported by any proxy",
	"spec.servers.port.targetPort":                       "of services only",
	"spec.ingress.port.targetPort":                       "of services only",
	"spec.egress.port.targetPort":                        "of services only",
	"spec.ingress.tls.httpsRedirect":                     "of gateways only",
	"spec.ingress.tls.credentialName":                    "of gateways only",
	"spec.ingress.tls.subjectAltNames":                   "of gateways only",
	"spec.ingress.tls.credentialNames":                   "of gateways only",
	"spec.ingress.tls.tlsCertificates":                   "of gateways only",
	"spec.ingress.tls.tlsCertificates.serverCertificate": "of gateways only",
	"spec.ingress.tls.tlsCertificates.privateKey":        "of gateways only",
	"spec.ingress.tls.tlsCertificates.caCertificates":    "of gateways only",
	"spec.trafficPolicy.proxyProtocol":                   "beside tunnel; see subsets",
	"spec.trafficPolicy.proxyProtocol.version":           "beside tunnel; see subsets",
}

// TestEveryFieldIsAccepted decodes examples that together set each field of each message of the
// kind, at every path, so that no field is rejected by mistake.
func TestEveryFieldIsAccepted(t *testing.T) {
	t.Parallel()
	set := map[model.Kind]map[string]bool{}
	for path, data := range testFiles(t) {
		if !strings.HasPrefix(path, "testdata/everything/") {
			continue
		}
		objects, problems := Decode(path, data)
		for _, p := range problems {
			if !p.Warning {
				t.Errorf("%v", p)
			}
		}
		for _, c := range objects {
			if m, ok := c.Spec.(proto.Message); ok {
				if set[c.Kind] == nil {
					set[c.Kind] = map[string]bool{}
				}
				fieldsSet(m.ProtoReflect(), "spec", set[c.Kind])
			}
		}
	}
	for _, kind := range []model.Kind{
		model.VirtualService, model.DestinationRule, model.Gateway, model.ServiceEntry, model.Sidecar, model.WorkloadEntry, model.WorkloadGroup,
	} {
		sch, _ := schema.Of(kind)
		all := map[string]bool{}
		fieldsOf(sch.NewSpec().(proto.Message).ProtoReflect().Descriptor(), "spec", all)
		for path := range field.Sorted(all) {
			// A policy or pool that is set at one path need not be set at the others.
			if at, ok := strings.CutPrefix(path, "spec.trafficPolicy.portLevelSettings"); ok && set[kind]["spec.subsets.trafficPolicy"+at] {
				continue
			}
			at := strings.Replace(path, "spec.trafficPolicy", "spec.subsets.trafficPolicy", 1)
			at = strings.Replace(at, ".portLevelSettings.", ".", 1)
			if !set[kind][path] && !set[kind][at] && refusedPaths[path] == "" {
				t.Errorf("%s: no example sets %s", kind, path)
			}
			if set[kind][path] && refusedPaths[path] != "" {
				t.Errorf("%s: %s is accepted: remove it from refusedPaths", kind, path)
			}
		}
	}
}

// fieldsSet adds the paths of the fields that are set, without indexes and keys.
func fieldsSet(m protoreflect.Message, path string, out map[string]bool) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + "." + fd.JSONName()
		out[at] = true
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					fieldsSet(v.Message(), at, out)
					return true
				})
			}
		case fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				fieldsSet(v.List().Get(i).Message(), at, out)
			}
		default:
			fieldsSet(v.Message(), at, out)
		}
		return true
	})
}

// fieldsOf adds the paths of all fields of a message.
func fieldsOf(md protoreflect.MessageDescriptor, path string, out map[string]bool) {
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		at := path + "." + fd.JSONName()
		out[at] = true
		if fd.IsMap() {
			fd = fd.MapValue()
		}
		if m := fd.Message(); m != nil && !strings.HasPrefix(string(m.FullName()), "google.protobuf.") {
			fieldsOf(m, at, out)
		}
	}
}

// TestSamplesAreAccepted checks that files in the style of Istio's samples, with several kinds in a
// file and all served versions, are decoded without problems.
func TestSamplesAreAccepted(t *testing.T) {
	t.Parallel()
	versions, kinds := map[string]bool{}, map[model.Kind]bool{}
	for path, data := range testFiles(t) {
		if !strings.HasPrefix(path, "testdata/samples/") {
			continue
		}
		objects, problems := Decode(path, data)
		problems = slices.DeleteFunc(problems, func(p model.Problem) bool { return p.Warning })
		if len(problems) > 0 || len(objects) < 2 {
			t.Errorf("%s: %d objects, %v", path, len(objects), problems)
		}
		for _, c := range objects {
			kinds[c.Kind] = true
			_, version, _ := strings.Cut(c.APIVersion, "/")
			versions[version] = true
		}
	}
	for _, v := range []string{"v1", "v1beta1", "v1alpha3"} {
		if !versions[v] {
			t.Errorf("no sample is written in %s", v)
		}
	}
	for _, k := range []model.Kind{
		model.Gateway, model.VirtualService, model.DestinationRule, model.ServiceEntry, model.Sidecar, model.WorkloadEntry, model.WorkloadGroup,
		model.AuthorizationPolicy, model.PeerAuthentication, model.RequestAuthentication, model.Telemetry, model.EnvoyFilter,
	} {
		if !kinds[k] {
			t.Errorf("no sample has a %s", k)
		}
	}
}

// TestDirectResponseBody checks bodies at two sizes for which golden files would be unreadable.
func TestDirectResponseBody(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]string{
		100 << 10:   "",
		100<<10 + 1: "warning: spec.http[0].directResponse.body has 102401 bytes, which every proxy receives with its routes: serve more than 102400 from an application",
		1<<20 + 1:   "spec.http[0].directResponse.body has 1048577 bytes: at most 1048576 are allowed; serve it from an application",
	} {
		errs, warnings := validate.Object(&model.Config{
			Key: model.Key{Kind: model.VirtualService, Namespace: "a", Name: "b"},
			Spec: &networkingv1alpha3.VirtualService{Hosts: []string{"a"}, Http: []*networkingv1alpha3.HTTPRoute{{
				DirectResponse: &networkingv1alpha3.HTTPDirectResponse{Status: 200, Body: &networkingv1alpha3.HTTPBody{
					Specifier: &networkingv1alpha3.HTTPBody_Bytes{Bytes: make([]byte, size)},
				}},
			}}},
		})
		var got []string
		for _, e := range errs {
			got = append(got, e.Error())
		}
		for _, w := range warnings {
			got = append(got, "warning: "+w.Error())
		}
		if strings.Join(got, "\n") != want {
			t.Errorf("%d bytes: %q, want %q", size, got, want)
		}
	}
}
