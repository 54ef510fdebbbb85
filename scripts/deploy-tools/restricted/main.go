// Judges the pods in manifests as the API server would in a namespace that enforces the Pod Security Standard
// "restricted", by Kubernetes' own code. Takes files; ends with 1 if a pod would be refused, or if there is none.
package main

import (
	"bytes"
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

func template(doc []byte) (name string, pod *corev1.PodTemplateSpec, err error) {
	var head struct{ Kind string }
	if err = yaml.Unmarshal(doc, &head); err != nil {
		return
	}
	switch head.Kind {
	case "Deployment":
		var d appsv1.Deployment
		err = yaml.UnmarshalStrict(doc, &d)
		return "Deployment " + d.Name, &d.Spec.Template, err
	case "CronJob":
		var c batchv1.CronJob
		err = yaml.UnmarshalStrict(doc, &c)
		return "CronJob " + c.Name, &c.Spec.JobTemplate.Spec.Template, err
	}
	return
}

func main() {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		panic(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	code := 0
	for _, file := range os.Args[1:] {
		text, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		pods := 0
		for _, doc := range bytes.Split(append([]byte("\n"), text...), []byte("\n---\n")) {
			name, pod, err := template(doc)
			if err != nil {
				fmt.Printf("%s: %s\n", file, err)
				code = 1
			} else if pod != nil {
				pods++
				result := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec))
				if !result.Allowed {
					fmt.Printf("%s: %s: %s\n", file, name, result.ForbiddenDetail())
					code = 1
				}
			}
		}
		if pods == 0 {
			fmt.Printf("%s: no pod was found\n", file)
			code = 1
		}
	}
	os.Exit(code)
}
