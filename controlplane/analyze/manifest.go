// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Manifests are the objects of Kubernetes that checks use.
type Manifests struct {
	pods       []*pod
	services   []*service
	namespaces []*namespace
	secrets    map[objectName]*secret
	webhooks   []*webhook
	conditions []condition
	problems   []model.Problem
	// nodes are the objects of the mesh, to find the lines of their fields.
	nodes map[place]*yaml.Node
}

type objectName struct{ namespace, name string }

// place is where an object is.
type place struct {
	Object
	source string
}

// pod is a pod or the template of one.
type pod struct {
	place
	namespace, name     string
	labels, annotations map[string]string
	spec                *corev1.PodSpec
	// template is false for a pod that exists. owner are the annotations of the object with the template.
	template bool
	owner    map[string]string
}

type service struct {
	place
	*corev1.Service
}

type namespace struct {
	place
	labels, annotations map[string]string
}

type secret struct {
	place
	data map[string][]byte
}

// webhook is one service that an API server calls.
type webhook struct {
	place
	name, namespace, service string
	port                     int32
}

// condition is a condition of an object's status that is not met.
type condition struct {
	place
	verdict
}

// size returns the number of objects.
func (m *Manifests) size() int {
	return len(m.pods) + len(m.services) + len(m.namespaces) + len(m.secrets)
}

// File is the text of a file.
type File struct {
	Source string
	Data   []byte
}

// Files are the objects of files.
type Files struct {
	Objects   []*model.Config
	Problems  []model.Problem
	Manifests *Manifests
	// Skipped is the number of objects that no check uses.
	Skipped int
}

// Read reads the objects of files. Objects without a namespace belong to the given one; empty means
// the default one. It ends early when done, which may be nil, is closed. If lenient is set, documents
// that are no objects are skipped.
func Read(done <-chan struct{}, files []File, in string, lenient bool) Files {
	f := Files{Manifests: ReadManifests(nil, in)}
	seen := map[model.Key]string{}
	for _, file := range files {
		objects, problems, skipped := codec.DecodeManifests(done, file.Source, file.Data, in)
		for _, p := range problems {
			if !lenient || p.Object != (model.Key{Kind: p.Object.Kind}) || p.Warning {
				f.Problems = append(f.Problems, p)
			} else {
				f.Skipped++
			}
		}
		for _, c := range objects {
			if first, ok := seen[c.Key]; ok {
				if c.Annotations[config.Replaceable] == "true" {
					continue // as the control plane does
				}
				f.Problems = append(f.Problems, model.Problem{Object: c.Key, Source: c.Source, Reason: "the same object is in " + first + " already; remove one of them"})
				continue
			}
			seen[c.Key] = c.Source
			f.Objects = append(f.Objects, c)
		}
		f.Skipped += max(0, skipped-f.Manifests.read(file, in))
	}
	f.Problems = append(f.Problems, f.Manifests.problems...)
	return f
}

// ReadManifests reads the objects of Kubernetes in files, as Read does.
func ReadManifests(files []File, in string) *Manifests {
	m := &Manifests{secrets: map[objectName]*secret{}, nodes: map[place]*yaml.Node{}}
	for _, file := range files {
		m.read(file, in)
	}
	return m
}

// read adds the objects of Kubernetes in a file, and returns their number.
func (m *Manifests) read(file File, in string) (used int) {
	r := &manifestReader{source: file.Source, namespace: cmp.Or(in, schema.DefaultNamespace), out: m}
	if len(file.Data) <= codec.MaxFileSize {
		for doc := range codec.Documents(file.Data) {
			for _, n := range doc.Nodes() {
				r.document(n, true)
			}
		}
	}
	return r.used
}

// manifestReader reads the objects of one file.
type manifestReader struct {
	source, namespace string
	out               *Manifests
	used              int // objects that are not the mesh's
}

// head is the part that all objects have.
type head struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Namespace string `yaml:"namespace"`
		Name      string `yaml:"name"`
	} `yaml:"metadata"`
	Status struct {
		Conditions []struct {
			Type    string `yaml:"type"`
			Status  string `yaml:"status"`
			Reason  string `yaml:"reason"`
			Message string `yaml:"message"`
		} `yaml:"conditions"`
	} `yaml:"status"`
	Items []yaml.Node `yaml:"items"`
}

func (r *manifestReader) document(n *yaml.Node, lists bool) {
	var h head
	if n.Kind != yaml.MappingNode || n.Decode(&h) != nil || h.Kind == "" {
		return // the codec reports it
	}
	if lists && strings.HasSuffix(h.Kind, "List") {
		for i := range h.Items {
			r.document(&h.Items[i], false)
		}
		return
	}
	at := place{Object{h.Kind, cmp.Or(h.Metadata.Namespace, r.namespace), h.Metadata.Name}, fmt.Sprintf("%s:%d", r.source, n.Line)}
	if schema.OfMesh(h.APIVersion) {
		r.out.nodes[at] = n
		for _, c := range h.Status.Conditions {
			if c.Status == "False" {
				r.out.conditions = append(r.out.conditions, condition{at, verdict{c.Type, c.Reason, c.Message}})
			}
		}
		return
	}
	if err := r.object(n, h, at); err != nil {
		r.out.problems = append(r.out.problems, model.Problem{
			Object: model.Key{Kind: model.Kind(h.Kind), Namespace: at.Namespace, Name: at.Name}, Source: at.source,
			Reason: fmt.Sprintf("the object cannot be read: %v; correct it", err),
		})
	}
}

// object reads an object of Kubernetes that a check uses.
func (r *manifestReader) object(n *yaml.Node, h head, at place) error {
	switch h.APIVersion + " " + h.Kind {
	case "v1 Pod":
		return read(r, n, at, func(o *corev1.Pod) { r.pod(at, o.ObjectMeta, &o.Spec) })
	case "apps/v1 Deployment":
		return read(r, n, at, func(o *appsv1.Deployment) { r.template(at, o.Annotations, &o.Spec.Template) })
	case "apps/v1 StatefulSet":
		return read(r, n, at, func(o *appsv1.StatefulSet) { r.template(at, o.Annotations, &o.Spec.Template) })
	case "apps/v1 DaemonSet":
		return read(r, n, at, func(o *appsv1.DaemonSet) { r.template(at, o.Annotations, &o.Spec.Template) })
	case "apps/v1 ReplicaSet":
		return read(r, n, at, func(o *appsv1.ReplicaSet) { r.template(at, o.Annotations, &o.Spec.Template) })
	case "batch/v1 Job":
		return read(r, n, at, func(o *batchv1.Job) { r.template(at, o.Annotations, &o.Spec.Template) })
	case "batch/v1 CronJob":
		return read(r, n, at, func(o *batchv1.CronJob) { r.template(at, o.Annotations, &o.Spec.JobTemplate.Spec.Template) })
	case "v1 Service":
		return read(r, n, at, func(o *corev1.Service) {
			o.Namespace = at.Namespace
			r.out.services = append(r.out.services, &service{at, o})
		})
	case "v1 Namespace":
		at.Namespace = ""
		return read(r, n, at, func(o *corev1.Namespace) {
			r.out.namespaces = append(r.out.namespaces, &namespace{at, o.Labels, o.Annotations})
		})
	case "v1 Secret":
		err := read(r, n, at, func(o *corev1.Secret) {
			s := &secret{place: at, data: o.Data}
			for k, v := range o.StringData {
				if s.data == nil {
					s.data = map[string][]byte{}
				}
				s.data[k] = []byte(v)
			}
			r.out.secrets[objectName{at.Namespace, at.Name}] = s
		})
		r.used-- // the codec does not count Secrets
		return err
	case "admissionregistration.k8s.io/v1 MutatingWebhookConfiguration":
		return read(r, n, at, func(o *admissionv1.MutatingWebhookConfiguration) {
			for _, w := range o.Webhooks {
				r.webhook(at, w.Name, w.ClientConfig)
			}
		})
	case "admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration":
		return read(r, n, at, func(o *admissionv1.ValidatingWebhookConfiguration) {
			for _, w := range o.Webhooks {
				r.webhook(at, w.Name, w.ClientConfig)
			}
		})
	}
	return nil
}

// read decodes a node into an object of Kubernetes and calls use.
func read[T any](r *manifestReader, n *yaml.Node, at place, use func(*T)) error {
	r.used++
	if at.Name == "" {
		return fmt.Errorf("metadata.name is missing")
	}
	var tree any
	if err := n.Decode(&tree); err != nil {
		return err
	}
	raw, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	out := new(T)
	if err := json.Unmarshal(raw, out); err != nil {
		return err
	}
	use(out)
	return nil
}

func (r *manifestReader) template(at place, owner map[string]string, t *corev1.PodTemplateSpec) {
	r.pod(at, t.ObjectMeta, &t.Spec)
	last := r.out.pods[len(r.out.pods)-1]
	last.template, last.owner = true, owner
}

func (r *manifestReader) pod(at place, meta metav1.ObjectMeta, spec *corev1.PodSpec) {
	r.out.pods = append(r.out.pods, &pod{
		place: at, namespace: at.Namespace, name: at.Name, labels: meta.Labels, annotations: meta.Annotations, spec: spec,
	})
}

func (r *manifestReader) webhook(at place, name string, c admissionv1.WebhookClientConfig) {
	if c.Service == nil {
		return
	}
	at.Namespace = ""
	w := &webhook{place: at, name: name, namespace: c.Service.Namespace, service: c.Service.Name, port: 443}
	if c.Service.Port != nil {
		w.port = *c.Service.Port
	}
	r.out.webhooks = append(r.out.webhooks, w)
}

// containers returns all containers of a pod.
func (p *pod) containers() []corev1.Container {
	return slices.Concat(p.spec.InitContainers, p.spec.Containers)
}

// Add adds other manifests. Secrets that both have stay as they are.
func (m *Manifests) Add(o *Manifests) {
	m.pods, m.services, m.namespaces = append(m.pods, o.pods...), append(m.services, o.services...), append(m.namespaces, o.namespaces...)
	m.webhooks, m.conditions = append(m.webhooks, o.webhooks...), append(m.conditions, o.conditions...)
	maps.Copy(m.nodes, o.nodes)
	for name, s := range o.secrets {
		if m.secrets[name] == nil {
			m.secrets[name] = s
		}
	}
}
