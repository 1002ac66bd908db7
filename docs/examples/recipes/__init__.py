"""What people come for, each a script that runs on a CPU in minutes, and downloads nothing.

docs/examples.md tells what each shows. Their models are small and have random weights, unless
`--model` names a folder of real ones.
"""
