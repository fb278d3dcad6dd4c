// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// Names of containers.
const (
	proxyName      = "istio-proxy"
	initName       = "istio-init"
	validationName = "istio-validation"
	coreDumpName   = "enable-core-dump" // of custom templates
)

const (
	modeNone   = "NONE"
	modeTProxy = "TPROXY"
	proxyID    = 1337 // user and group of the proxy, except on OpenShift
)

// job is one pod that receives a proxy: what templates use.
type job struct {
	pod        *corev1.Pod // without what an earlier injection added
	owner      owner
	mesh       *meshv1alpha1.MeshConfig
	proxy      *meshv1alpha1.ProxyConfig
	values     *Values
	revision   string
	native     bool              // the proxy is a native sidecar
	env        map[string]string // variables that the webhook's URL sets
	compliance tlspolicy.Policy
	user       int64 // of the proxy
	group      int64

	warnings []string
	errs     []error // found while templates are rendered
}

// annotated returns an annotation of the pod, or without one a value.
func (j *job) annotated(name string, value text) string {
	return annotated(j.pod.Annotations, name, value)
}

// number returns a number of an annotation or a value.
func (j *job) number(name string, value text) int32 {
	s := j.annotated(name, value)
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 32)
	if err != nil {
		j.errs = append(j.errs, fmt.Errorf("the value for %s is %s; it must be a number", name, clipped(s)))
	}
	return int32(n)
}

// mode returns how traffic reaches the proxy: REDIRECT, TPROXY or NONE.
func (j *job) mode() string {
	return j.annotated(nameInterception, text(j.proxy.GetInterceptionMode().String()))
}

// statusPort returns the port of the agent for probes as the pod states it; 0 turns probes of the
// proxy off.
func (j *job) statusPort() string {
	return j.annotated(nameStatusPort, j.values.Global.Proxy.StatusPort)
}

// holds reports whether the application starts after the proxy.
func (j *job) holds() bool {
	return j.proxy.GetHoldApplicationUntilProxyStarts().GetValue() || bool(j.values.Global.Proxy.HoldApplication)
}

// apps returns the names of the application's containers.
func (j *job) apps() []string {
	var names []string
	for i := range j.pod.Spec.Containers {
		if name := j.pod.Spec.Containers[i].Name; name != proxyName {
			names = append(names, name)
		}
	}
	return names
}

// cluster returns the name of the pod's cluster.
func (j *job) cluster() string {
	if name := j.env["ISTIO_META_CLUSTER_ID"]; name != "" {
		return name
	}
	if name := j.values.Global.MultiCluster.ClusterName; name != "" {
		return string(name)
	}
	return "Kubernetes"
}

// network returns the network of the pod, "" if it is not known.
func (j *job) network() string {
	if name, ok := j.pod.Labels[nameNetwork]; ok {
		return name
	}
	if name := j.env["ISTIO_META_NETWORK"]; name != "" {
		return name
	}
	return string(j.values.Global.Network)
}

// trustDomain returns the trust domain of the mesh.
func (j *job) trustDomain() string {
	if domain := j.mesh.GetTrustDomain(); domain != "" {
		return domain
	}
	return string(j.values.Global.TrustDomain)
}

// caAddress returns host and port of the control plane's certificate authority.
func (j *job) caAddress() string {
	g := &j.values.Global
	if g.CAAddress != "" {
		return string(g.CAAddress)
	}
	host := "istiod"
	if r := j.values.Revision; r != "" {
		host += "-" + string(r)
	}
	return host + "." + string(g.IstioNamespace) + ".svc:15012"
}

// image returns the image of the proxy. An annotation or a value with a slash is the whole image.
func (j *job) image() string {
	return j.imageOf(j.annotated(nameImage, j.values.Global.Proxy.Image), j.values.Global.Proxy.Image, j.proxy.GetImage().GetImageType())
}

// initImage returns the image of the container that sets up interception.
func (j *job) initImage() string {
	return j.imageOf(j.annotated(nameImage, j.values.Global.ProxyInit.Image), j.values.Global.ProxyInit.Image, "")
}

func (j *job) imageOf(asked string, name text, variant string) string {
	if strings.Contains(asked, "/") {
		return asked
	}
	return j.hubImage(string(name), variant)
}

// hubImage returns an image of the hub. The variant, such as distroless, replaces that of the tag.
func (j *job) hubImage(name, variant string) string {
	g := &j.values.Global
	if variant == "" {
		variant = string(g.Variant)
	}
	variant = annotated(j.pod.Annotations, nameImageType, text(variant))
	tag := string(g.Tag)
	if variant != "" {
		for _, known := range []string{"-distroless", "-debug"} {
			if rest, ok := strings.CutSuffix(tag, known); ok {
				tag = rest
				break
			}
		}
		if variant != "default" {
			tag += "-" + variant
		}
	}
	return string(g.Hub) + "/" + name + ":" + tag
}

// proxyConfig returns the fields of the ProxyConfig that differ from the defaults, as JSON.
func (j *job) proxyConfig() string { return changedFields(j.proxy) }

// changedFields returns the fields of a message as JSON. A ProxyConfig loses those that have their
// default.
func changedFields(message proto.Message) string {
	if config, ok := message.(*meshv1alpha1.ProxyConfig); ok {
		defaults := meshconfig.DefaultProxyConfig().ProtoReflect()
		out := proto.Clone(config).ProtoReflect()
		config.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
			if defaults.Has(field) && defaults.Get(field).Equal(value) {
				out.Clear(field)
			}
			return true
		})
		message = out.Interface()
	}
	doc, err := protojson.Marshal(message)
	var b bytes.Buffer
	if err != nil || json.Compact(&b, doc) != nil {
		return "{}" // a message that was parsed can be written
	}
	return b.String()
}

// ports returns the ports of the pod's containers as JSON.
func (j *job) ports() string {
	ports := []corev1.ContainerPort{}
	for i := range j.pod.Spec.Containers {
		ports = append(ports, j.pod.Spec.Containers[i].Ports...)
	}
	doc, err := json.Marshal(ports)
	if err != nil {
		return "[]" // such values can be written
	}
	return string(doc)
}

// excludedPorts returns a list of ports with the status port.
func excludedPorts(port, list string) string {
	port = strings.TrimSpace(port)
	ports := items(list)
	if port == "" || port == "0" || slices.Contains(ports, port) {
		return list
	}
	ports = slices.DeleteFunc(ports, func(s string) bool { return s == "" })
	return strings.Join(append(ports, port), ",")
}

// environment are the variables of a container. A later value of a name replaces an earlier one.
type environment []corev1.EnvVar

func (e *environment) add(v corev1.EnvVar) {
	if i := slices.IndexFunc(*e, func(before corev1.EnvVar) bool { return before.Name == v.Name }); i >= 0 {
		(*e)[i] = v
		return
	}
	*e = append(*e, v)
}

func (e *environment) set(name, value string) { e.add(corev1.EnvVar{Name: name, Value: value}) }

// setFilled sets a variable unless the value is empty.
func (e *environment) setFilled(name, value string) {
	if value != "" {
		e.set(name, value)
	}
}

// field sets a variable to a field of the pod.
func (e *environment) field(name, path string) {
	e.add(corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}})
}

// setAll sets the variables of a map, in the order of their names.
func (e *environment) setAll(values map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		e.set(name, values[name])
	}
}

func (j *job) fail(err error) { j.errs = append(j.errs, err) }

// err returns what went wrong while the templates were rendered.
func (j *job) err() error { return errors.Join(j.errs...) }
