package deploy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// cluster is what kustomize makes of deploy/kubernetes.
type cluster struct {
	namespace  corev1.Namespace
	account    corev1.ServiceAccount
	configMap  corev1.ConfigMap
	secrets    []corev1.Secret
	service    corev1.Service
	deployment appsv1.Deployment
	job        batchv1.Job
	budget     policyv1.PodDisruptionBudget
	network    networkingv1.NetworkPolicy
}

// built fails the test for a field that the type of Kubernetes does not have.
func built(t *testing.T) (c cluster) {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).
		Run(filesys.MakeFsOnDisk(), "../../deploy/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range made.Resources() {
		secret := &corev1.Secret{}
		kinds := map[string]any{
			"Namespace": &c.namespace, "ServiceAccount": &c.account, "ConfigMap": &c.configMap,
			"Secret": secret, "Service": &c.service, "Deployment": &c.deployment, "Job": &c.job,
			"PodDisruptionBudget": &c.budget, "NetworkPolicy": &c.network,
		}
		into := kinds[r.GetKind()]
		if into == nil {
			t.Fatalf("no check for the kind %s", r.GetKind())
		}
		if err := yaml.UnmarshalStrict([]byte(r.MustYaml()), into); err != nil {
			t.Errorf("%s %s: %v", r.GetKind(), r.GetName(), err)
		}
		if r.GetKind() == "Secret" {
			c.secrets = append(c.secrets, *secret)
		}
		if r.GetKind() != "Namespace" && r.GetNamespace() != "caretaker" {
			t.Errorf("%s is in the namespace %q", r.GetName(), r.GetNamespace())
		}
	}
	return c
}

func (c cluster) pods() map[string]corev1.PodTemplateSpec {
	return map[string]corev1.PodTemplateSpec{
		"deployment": c.deployment.Spec.Template, "job": c.job.Spec.Template,
	}
}

func TestKubernetes_PodsMayDoNothingButTheirWork(t *testing.T) {
	c := built(t)
	for name, pod := range c.pods() {
		s := pod.Spec.SecurityContext
		if s == nil || !*s.RunAsNonRoot || *s.RunAsUser != 65532 || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: %+v", name, s)
		}
		if *pod.Spec.AutomountServiceAccountToken || pod.Spec.ServiceAccountName != c.account.Name {
			t.Errorf("%s has a token, or the account %s", name, pod.Spec.ServiceAccountName)
		}
		for _, container := range pod.Spec.Containers {
			s := container.SecurityContext
			if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: %+v", name, s)
			}
			if container.Resources.Limits.Memory().IsZero() || !strings.Contains(container.Image, "/caretaker:") {
				t.Errorf("%s: image %s, limits %v", name, container.Image, container.Resources.Limits)
			}
		}
	}
	if *c.account.AutomountServiceAccountToken || c.namespace.Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
		t.Error("the account has a token, or the namespace lets everything in")
	}
}

func TestKubernetes_WhatIsReferredToIsThere(t *testing.T) {
	c := built(t)
	names := []string{c.configMap.Name}
	for _, s := range c.secrets {
		names = append(names, s.Name)
	}
	for name, pod := range c.pods() {
		for _, container := range pod.Spec.Containers {
			for _, from := range container.EnvFrom {
				if !slices.Contains(names, from.SecretRef.Name) {
					t.Errorf("%s: there is no %s, but %v", name, from.SecretRef.Name, names)
				}
			}
			for _, m := range container.VolumeMounts {
				if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
					t.Errorf("%s: there is no volume %s", name, m.Name)
				}
			}
		}
		for _, v := range pod.Spec.Volumes {
			if v.ConfigMap != nil && !slices.Contains(names, v.ConfigMap.Name) || v.Secret != nil && !slices.Contains(names, v.Secret.SecretName) {
				t.Errorf("%s: the volume %s is of nothing that is there: %v", name, v.Name, names)
			}
		}
	}
	from := func(pod corev1.PodTemplateSpec) string { return pod.Spec.Containers[0].EnvFrom[0].SecretRef.Name }
	if from(c.job.Spec.Template) == from(c.deployment.Spec.Template) {
		t.Error("migrate has the role of the servers")
	}
	server := c.deployment.Spec.Template.Labels
	for what, selector := range map[string]map[string]string{
		"deployment": c.deployment.Spec.Selector.MatchLabels, "service": c.service.Spec.Selector,
		"budget": c.budget.Spec.Selector.MatchLabels, "network": c.network.Spec.PodSelector.MatchLabels,
	} {
		if !contains(server, selector) {
			t.Errorf("the %s selects %v, pods have %v", what, selector, server)
		}
	}
	if contains(c.job.Spec.Template.Labels, c.service.Spec.Selector) {
		t.Error("the service leads to the pod of migrate")
	}
	if !contains(c.job.Spec.Template.Labels, c.network.Spec.PodSelector.MatchLabels) {
		t.Error("the network policy leaves out the pod of migrate")
	}
}

func contains(all, some map[string]string) bool {
	if len(some) == 0 {
		return false
	}
	merged := maps.Clone(all)
	maps.Copy(merged, some)
	return maps.Equal(merged, all)
}

func TestKubernetes_TwoServersAreProbedAndStoppedInTime(t *testing.T) {
	c := built(t)
	pod := c.deployment.Spec.Template
	container := pod.Spec.Containers[0]
	live, ready := container.LivenessProbe.GRPC, container.ReadinessProbe.GRPC
	if live.Port != 50051 || *live.Service != "live" || ready.Port != 50051 || *ready.Service != "" {
		t.Errorf("probes %+v, %+v", live, ready)
	}
	if *c.deployment.Spec.Replicas != 2 || c.budget.Spec.MinAvailable.IntValue() != 1 {
		t.Errorf("%d replicas, of which %v stay", *c.deployment.Spec.Replicas, c.budget.Spec.MinAvailable)
	}
	if *pod.Spec.TerminationGracePeriodSeconds <= 55 {
		t.Error("it may be killed while it stops")
	}
	if pod.Annotations["prometheus.io/scrape"] != "true" || pod.Annotations["prometheus.io/port"] != "9464" {
		t.Error(pod.Annotations)
	}
	ports := map[string]int32{}
	for _, p := range container.Ports {
		ports[p.Name] = p.ContainerPort
	}
	if !maps.Equal(ports, map[string]int32{"grpc": 50051, "metrics": 9464}) || c.service.Spec.Ports[0].TargetPort.StrVal != "grpc" {
		t.Error(ports, c.service.Spec.Ports)
	}
	for _, rule := range c.network.Spec.Ingress {
		if len(rule.From) == 0 || len(rule.Ports) == 0 {
			t.Errorf("everybody is let in: %+v", rule)
		}
	}
}
