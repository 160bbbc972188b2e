"""Do the tests notice a defect? Random ones are put into the source, one at a time: `make
mutants`.
"""
