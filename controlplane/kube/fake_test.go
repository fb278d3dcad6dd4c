// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	clienttesting "k8s.io/client-go/testing"
)

// fakeServer stores objects like an API server, with the library of client-go's own fake.
type fakeServer struct {
	clienttesting.Fake

	tracker clienttesting.ObjectTracker
}

// newFake returns an api for a fake API server that contains some objects.
func newFake(t testing.TB, known ...runtime.Object) (*api, *fakeServer) {
	t.Helper()
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeServer{tracker: clienttesting.NewObjectTracker(s, serializer.NewCodecFactory(s).UniversalDecoder())}
	for _, o := range known {
		if err := f.tracker.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	f.AddReactor("*", "*", clienttesting.ObjectReaction(f.tracker))
	f.AddWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := f.tracker.Watch(action.GetResource(), action.GetNamespace())
		return true, w, err
	})
	core, certificates := corev1.SchemeGroupVersion, certificatesv1.SchemeGroupVersion
	return &api{
		configMaps: func(namespace string) patchable[*corev1.ConfigMap, *corev1.ConfigMapList] {
			return fakeKind(f, core.WithResource("configmaps"), core.WithKind("ConfigMap"), namespace,
				func(l *corev1.ConfigMapList) *[]corev1.ConfigMap { return &l.Items })
		},
		secrets: func(namespace string) objects[*corev1.Secret, *corev1.SecretList] {
			return fakeKind(f, core.WithResource("secrets"), core.WithKind("Secret"), namespace,
				func(l *corev1.SecretList) *[]corev1.Secret { return &l.Items })
		},
		pods: func(namespace string) objects[*corev1.Pod, *corev1.PodList] {
			return fakeKind(f, core.WithResource("pods"), core.WithKind("Pod"), namespace,
				func(l *corev1.PodList) *[]corev1.Pod { return &l.Items })
		},
		leases: func(namespace string) objects[*coordinationv1.Lease, *coordinationv1.LeaseList] {
			return fakeKind(f, coordinationv1.SchemeGroupVersion.WithResource("leases"), coordinationv1.SchemeGroupVersion.WithKind("Lease"), namespace,
				func(l *coordinationv1.LeaseList) *[]coordinationv1.Lease { return &l.Items })
		},
		requests: fakeKind(f, certificates.WithResource("certificatesigningrequests"), certificates.WithKind("CertificateSigningRequest"), "",
			func(l *certificatesv1.CertificateSigningRequestList) *[]certificatesv1.CertificateSigningRequest {
				return &l.Items
			}),
		access: gentype.NewFakeClient(&f.Fake, "", authorizationv1.SchemeGroupVersion.WithResource("subjectaccessreviews"),
			authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"),
			func() *authorizationv1.SubjectAccessReview { return &authorizationv1.SubjectAccessReview{} }),
		approve: func(_ context.Context, o *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
			out, err := f.Invokes(clienttesting.NewRootUpdateSubresourceAction(certificates.WithResource("certificatesigningrequests"), "approval", o), o)
			if err != nil {
				return nil, err
			}
			return out.(*certificatesv1.CertificateSigningRequest), nil
		},
	}, f
}

// fakeKind returns the client for a kind.
func fakeKind[T, L any, P interface {
	*T
	metaObject
}, Q interface {
	*L
	runtime.Object
	metav1.ListInterface
}](f *fakeServer, resource schema.GroupVersionResource, kind schema.GroupVersionKind, namespace string, items func(Q) *[]T) fakeClient[P, Q] {
	return fakeClient[P, Q]{gentype.NewFakeClientWithList(&f.Fake, namespace, resource, kind, func() P { return new(T) }, func() Q { return new(L) },
		func(to, from Q) { to.SetResourceVersion(from.GetResourceVersion()) },
		func(l Q) []P {
			var out []P
			for i := range *items(l) {
				out = append(out, &(*items(l))[i])
			}
			return out
		},
		func(l Q, all []P) {
			for _, one := range all {
				*items(l) = append(*items(l), *one)
			}
		})}
}

// fakeClient adds what the fake server lacks: a watch that begins with a list.
type fakeClient[P metaObject, Q runtime.Object] struct {
	*gentype.FakeClientWithList[P, Q]
}

func (fakeClient[P, Q]) IsWatchListSemanticsUnSupported() bool { return true }
