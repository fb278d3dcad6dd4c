// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"net/http"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// api has the requests for the kinds that this package uses. The clientset of client-go has all
// kinds of Kubernetes, most of them in several versions: it makes each program 9 MB larger and
// takes 100 s of a processor to compile. The leader election of client-go imports the clientset.
type api struct {
	configMaps func(namespace string) patchable[*corev1.ConfigMap, *corev1.ConfigMapList]
	secrets    func(namespace string) objects[*corev1.Secret, *corev1.SecretList]
	pods       func(namespace string) objects[*corev1.Pod, *corev1.PodList]
	services   func(namespace string) objects[*corev1.Service, *corev1.ServiceList]
	slices     func(namespace string) objects[*discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList]
	leases     func(namespace string) objects[*coordinationv1.Lease, *coordinationv1.LeaseList]

	nodes      objects[*corev1.Node, *corev1.NodeList]
	namespaces objects[*corev1.Namespace, *corev1.NamespaceList]
	validating objects[*admissionv1.ValidatingWebhookConfiguration, *admissionv1.ValidatingWebhookConfigurationList]
	mutating   objects[*admissionv1.MutatingWebhookConfiguration, *admissionv1.MutatingWebhookConfigurationList]
	requests   objects[*certificatesv1.CertificateSigningRequest, *certificatesv1.CertificateSigningRequestList]
	tokens     creator[*authenticationv1.TokenReview]
	access     creator[*authorizationv1.SubjectAccessReview]

	// approve writes the conditions of a CertificateSigningRequest.
	approve func(context.Context, *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error)
}

// reader reads the objects of a kind.
type reader[T, L any] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// creator creates objects of a kind.
type creator[T any] interface {
	Create(ctx context.Context, object T, o metav1.CreateOptions) (T, error)
}

// objects reads and writes the objects of a kind.
type objects[T, L any] interface {
	reader[T, L]
	creator[T]
	Update(ctx context.Context, object T, o metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// patchable are objects that can also be patched.
type patchable[T, L any] interface {
	objects[T, L]
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (T, error)
}

// metaObject is a pointer to an object of Kubernetes.
type metaObject interface {
	runtime.Object
	metav1.Object
}

// newScheme returns a scheme of the groups that this package uses.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	var errs []error
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme, certificatesv1.AddToScheme,
		coordinationv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme,
	} {
		errs = append(errs, add(s))
	}
	return s, errors.Join(errs...)
}

// connection makes REST clients for the groups of an API server. They share one limit of requests.
type connection struct {
	config    *rest.Config
	transport *http.Client
	codecs    serializer.CodecFactory
	params    runtime.ParameterCodec
}

// newAPI returns the requests of an API server. All of them together are limited to qps and burst.
func newAPI(config *rest.Config, transport *http.Client, qps float32, burst int) (*api, error) {
	s, err := newScheme()
	if err != nil {
		return nil, err
	}
	c := &connection{config: rest.CopyConfig(config), transport: transport, codecs: serializer.NewCodecFactory(s), params: runtime.NewParameterCodec(s)}
	c.config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(qps, burst)
	groups := map[schema.GroupVersion]rest.Interface{}
	for _, group := range []schema.GroupVersion{
		admissionv1.SchemeGroupVersion, authenticationv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion, certificatesv1.SchemeGroupVersion,
		coordinationv1.SchemeGroupVersion, corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion,
	} {
		if groups[group], err = c.group(group); err != nil {
			return nil, err
		}
	}
	core, admission, signing := groups[corev1.SchemeGroupVersion], groups[admissionv1.SchemeGroupVersion], groups[certificatesv1.SchemeGroupVersion]
	return &api{
		configMaps: func(namespace string) patchable[*corev1.ConfigMap, *corev1.ConfigMapList] {
			return typed[corev1.ConfigMap, corev1.ConfigMapList](c, core, "configmaps", namespace)
		},
		secrets: func(namespace string) objects[*corev1.Secret, *corev1.SecretList] {
			return typed[corev1.Secret, corev1.SecretList](c, core, "secrets", namespace)
		},
		pods: func(namespace string) objects[*corev1.Pod, *corev1.PodList] {
			return typed[corev1.Pod, corev1.PodList](c, core, "pods", namespace)
		},
		services: func(namespace string) objects[*corev1.Service, *corev1.ServiceList] {
			return typed[corev1.Service, corev1.ServiceList](c, core, "services", namespace)
		},
		slices: func(namespace string) objects[*discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList] {
			return typed[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](c, groups[discoveryv1.SchemeGroupVersion], "endpointslices", namespace)
		},
		leases: func(namespace string) objects[*coordinationv1.Lease, *coordinationv1.LeaseList] {
			return typed[coordinationv1.Lease, coordinationv1.LeaseList](c, groups[coordinationv1.SchemeGroupVersion], "leases", namespace)
		},
		nodes:      typed[corev1.Node, corev1.NodeList](c, core, "nodes", ""),
		namespaces: typed[corev1.Namespace, corev1.NamespaceList](c, core, "namespaces", ""),
		validating: typed[admissionv1.ValidatingWebhookConfiguration, admissionv1.ValidatingWebhookConfigurationList](c, admission, "validatingwebhookconfigurations", ""),
		mutating:   typed[admissionv1.MutatingWebhookConfiguration, admissionv1.MutatingWebhookConfigurationList](c, admission, "mutatingwebhookconfigurations", ""),
		requests:   typed[certificatesv1.CertificateSigningRequest, certificatesv1.CertificateSigningRequestList](c, signing, "certificatesigningrequests", ""),
		tokens:     typed[authenticationv1.TokenReview, metav1.List](c, groups[authenticationv1.SchemeGroupVersion], "tokenreviews", ""),
		access:     typed[authorizationv1.SubjectAccessReview, metav1.List](c, groups[authorizationv1.SchemeGroupVersion], "subjectaccessreviews", ""),
		approve: func(ctx context.Context, o *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
			out := &certificatesv1.CertificateSigningRequest{}
			err := signing.Put().Resource("certificatesigningrequests").Name(o.Name).SubResource("approval").Body(o).Do(ctx).Into(out)
			return out, err
		},
	}, nil
}

// group returns the REST client of a group.
func (c *connection) group(group schema.GroupVersion) (rest.Interface, error) {
	config := rest.CopyConfig(c.config)
	config.GroupVersion, config.APIPath = &group, "/apis"
	if group.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = c.codecs.WithoutConversion()
	return rest.RESTClientForConfigAndClient(config, c.transport)
}

// typed returns the client of a kind. An empty namespace means all of them.
func typed[T, L any, P interface {
	*T
	metaObject
}, Q interface {
	*L
	runtime.Object
}](c *connection, group rest.Interface, resource, namespace string) *gentype.ClientWithList[P, Q] {
	return gentype.NewClientWithList(resource, group, c.params, namespace, func() P { return new(T) }, func() Q { return new(L) })
}
