// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// unreached matches the warning of package validate about routes and matches that earlier ones cover.
var unreached = regexp.MustCompile(`^spec\.(?:http|tls|tcp)\[\d+\](\.match\[\d+\])?:? is never reached`)

// operation matches the problem of a patch whose operation has no effect.
var operation = regexp.MustCompile(`\.patch\.operation is (REPLACE|ADD|REMOVE), which has no effect`)

// withoutAddress ends the warning of package validate about TCP ports of a ServiceEntry.
const withoutAddress = "cannot distinguish the service: write the addresses, or the protocol if it is another"

// readingCode returns the code of a problem of reading an object.
func readingCode(p model.Problem) string {
	switch m := unreached.FindStringSubmatch(p.Reason); {
	case !p.Warning && strings.Contains(p.Reason, "regular expression that Envoy accepts"):
		return "IST0122"
	case !p.Warning:
		return "IST0106"
	case m != nil && m[1] != "":
		return "IST0131"
	case m != nil:
		return "IST0130"
	case strings.HasSuffix(p.Reason, withoutAddress):
		return "IST0134"
	}
	return "IST0133"
}

// problems adds the problems of reading, and those that the snapshot has with objects.
func (a *analysis) problems() {
	for _, p := range a.Problems {
		a.problem(readingCode(p), p)
	}
	for _, p := range a.Mesh.Problems {
		switch {
		case p.Object.Kind == model.Telemetry && strings.Contains(p.Reason, "which is older and for the same workloads"):
			// oneOfNamespace finds it.
		case p.Code == model.DuplicateHost:
			a.problem("IST0109", p)
		case p.Code == model.ConflictInbound:
			a.problem("IST0116", p)
		case strings.Contains(p.Reason, "later routes are never reached"):
			a.problem("IST0130", p)
		case a.Partial: // what else is missing may be of another kind
		case a.AssumedMesh && strings.Contains(p.Reason, "extension provider"):
			a.providers = true
		case p.Dangling && (p.Object.Kind == model.VirtualService || p.Object.Kind == model.DestinationRule):
			if strings.Contains(p.Reason, "VirtualService ") { // a delegate
				a.problem("IST0101", p)
			}
			// The checks of these kinds find the others, with other codes.
		case operation.MatchString(p.Reason):
			a.problem(map[string]string{"REPLACE": "IST0152", "ADD": "IST0153", "REMOVE": "IST0154"}[operation.FindStringSubmatch(p.Reason)[1]], p)
		case strings.Contains(p.Reason, "no server of the Gateway"):
			a.problem("IST0132", p)
		case p.Dangling:
			a.problem("IST0101", p)
		default:
			a.problem("OUT0001", p)
		}
	}
}

func (a *analysis) problem(code string, p model.Problem) {
	if origin, ok := a.Origin[p.Object]; ok {
		p.Object = origin
	}
	message, how := sentences(p.Reason)
	if first, _, _ := strings.Cut(message, " "); first == "has" || first == "is" {
		message = "The object " + message
	}
	if code == "IST0130" {
		how = "Write it before the others, or remove it."
	}
	a.add(code, ObjectOf(p.Object), p.Source, message, how)
}

// curing matches the beginning of a cure behind what is wrong.
var curing = regexp.MustCompile(`[:;,] (?:(?:write|correct|remove|add|merge|use|create|name|keep|move|repeat|choose|split|spell|rename|set|reduce|make|Did|did|it must)\b)`)

// sentences splits the text of a problem into a sentence about it and one about its cure.
func sentences(text string) (message, how string) {
	at := curing.FindStringIndex(text)
	if at == nil {
		return sentence(text), "Correct the object."
	}
	return sentence(text[:at[0]]), capital(sentence(text[at[0]+2:]))
}

// sentence returns a text with a period.
func sentence(text string) string {
	if strings.HasSuffix(text, "?") {
		return text
	}
	return strings.TrimSuffix(text, ".") + "."
}

func capital(text string) string {
	r, n := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(r)) + text[n:]
}

// replacements are the successors of deprecated fields, by the full name of the field. It is never
// written to.
var replacements = map[string]string{
	"istio.networking.v1alpha3.CorsPolicy.allow_origin":                                 "allowOrigins",
	"istio.networking.v1alpha3.HTTPFaultInjection.Delay.percent":                        "percentage",
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.minimum_ring_size": "ringHash.minimumRingSize",
	"istio.networking.v1alpha3.LoadBalancerSettings.warmup_duration_secs":               "warmup.duration",
	"istio.networking.v1alpha3.HTTPRoute.mirror_percent":                                "mirrorPercentage",
	"istio.networking.v1alpha3.OutlierDetection.consecutive_errors":                     "consecutive5xxErrors",
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch.port_name":                     "portNumber",
}

// deprecated finds the deprecated fields that objects set.
func (a *analysis) deprecated() {
	for _, c := range a.Objects {
		if m, ok := c.Spec.(proto.Message); ok {
			a.deprecatedFields(c, m.ProtoReflect(), "spec", 0)
		}
	}
}

// maxNested is the maximum depth of messages in which deprecated fields are searched.
const maxNested = 20

func (a *analysis) deprecatedFields(c *model.Config, m protoreflect.Message, path string, depth int) {
	if depth > maxNested {
		return
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + "." + fd.JSONName()
		if options, ok := fd.Options().(*descriptorpb.FieldOptions); ok && options.GetDeprecated() {
			how := "Remove it, or use its successor."
			if next := replacements[string(fd.FullName())]; next != "" {
				how = fmt.Sprintf("Write %s.", next)
			}
			a.report("IST0002", c, fmt.Sprintf("%s is deprecated.", at), how)
		}
		if fd.Message() == nil || fd.Message().FullName().Parent() == "google.protobuf" {
			return true
		}
		switch {
		case fd.IsMap() && fd.MapValue().Message() != nil:
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				a.deprecatedFields(c, v.Message(), fmt.Sprintf("%s[%s]", at, k.String()), depth+1)
				return true
			})
		case fd.IsList():
			for i := range v.List().Len() {
				a.deprecatedFields(c, v.List().Get(i).Message(), fmt.Sprintf("%s[%d]", at, i), depth+1)
			}
		case !fd.IsMap():
			a.deprecatedFields(c, v.Message(), at, depth+1)
		}
		return true
	})
}
