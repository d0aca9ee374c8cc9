// Package deploy checks what cannot be run without a cluster or a container engine: the manifests of
// Kubernetes, compose.yaml and the Dockerfile are read by the libraries of those who run them. It is
// a module of its own, so that caretaker needs none of these.
package deploy
