// Package deploy checks the files for a cluster or a container engine. Kubernetes, compose and
// Docker read the manifests, compose.yaml and the Dockerfile with the same libraries. It is a
// module of its own, so that caretaker needs none of these.
package deploy
